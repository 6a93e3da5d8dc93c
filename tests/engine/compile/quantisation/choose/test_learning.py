"""What `--quality best` adds: who may have it, what is planned, and a bundle made with it."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from engine.bundle.manifest import Manifest
from engine.bundle.specs import ModelTask
from engine.compile.arguments import CompileArguments, QualityLevel, Quant
from engine.compile.progress import SilentProgress
from engine.compile.quantisation.choose.choose import Forms
from engine.compile.quantisation.choose.form import CodeForm
from engine.compile.quantisation.choose.quality import BASE, Estimate, resolve_quality
from engine.compile.quantisation.choose.quality_stages import learner_of, learning_errors, plan_of, with_learning
from engine.compile.quantisation.learn.learning_plan import (
    LAYER_RATES,
    MODEL_RATES,
    MOST_DIVERGENCE,
    NOTHING,
    TORCH,
    LearningRates,
)
from engine.compile.quantisation.rounding.codes import Coding
from engine.compile.sources.source import FolderSource
from engine.errors import CompileError
from engine.models.family import read_network
from tests.hybrid import make_hybrid

BEST = CompileArguments(Path(), Path(), quality=QualityLevel.BEST)
SCALES = CodeForm(32, Coding.SYMMETRIC)


def settle(source: Path) -> QualityLevel | None:
    opened = FolderSource(source)
    return resolve_quality(replace(BEST, source=source), opened, read_network(opened.config), SilentProgress()).quality


def test_best_needs_its_extra(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settle(tiny_checkpoint) is QualityLevel.BEST
    find = util.find_spec
    monkeypatch.setattr(
        "engine.compile.quantisation.learn.learning_plan.find_spec",
        lambda name: None if name == "torch" else find(name),
    )
    with pytest.raises(CompileError, match=r"--quality best needs one more package: pip install 'hexserve\[learn\]'"):
        settle(tiny_checkpoint)


def test_recurrent_layers_are_refused_by_name(tmp_path: Path) -> None:
    make_hybrid(tmp_path)
    with pytest.raises(CompileError, match="--quality best does not learn recurrent layers"):
        settle(tmp_path)


def test_nothing_is_planned_for_less_than_the_best(tiny_checkpoint: Path) -> None:
    network = read_network(FolderSource(tiny_checkpoint).config)
    good = replace(BEST, quality=QualityLevel.GOOD)
    assert plan_of(good, network, 4096) == NOTHING
    assert learner_of(network, Forms(SCALES, None), NOTHING, SilentProgress()) is None
    assert learning_errors(None) == {}
    assert with_learning(Estimate(1.0, 2, 3), NOTHING) == Estimate(1.0, 2, 3)


def test_an_embedder_has_its_layers_learned(tiny_checkpoint: Path) -> None:
    network = read_network(FolderSource(tiny_checkpoint).config)
    plan, other = (plan_of(replace(BEST, task=task), network, 4096) for task in (ModelTask.EMBED, ModelTask.GENERATE))
    assert (plan.layers, plan.model) == (LAYER_RATES, ())
    assert plan.methods == ("rounding and scales learned by layer",)
    assert (other.layers, other.model) == (LAYER_RATES, MODEL_RATES)
    assert plan.beside == plan.memory >= TORCH
    assert with_learning(Estimate(1.0, BASE, 3), plan) == Estimate(1.0 + plan.seconds, BASE + plan.memory, 3)
    assert other.memory > other.beside == plan.beside
    assert with_learning(Estimate(1.0, 2, 3), other).memory == BASE + other.memory
    much = Estimate(1.0, 10**10, 3)
    assert with_learning(much, other).memory == 10**10 + other.beside


def test_the_compiler_loads_no_torch() -> None:
    """Not even where it is installed: only learning does."""
    code = (
        "import sys, engine.compile.pipeline, engine.compile.quantisation.learn.learning_plan;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "options",
    [{"quant": Quant.INT4}, {"quant": Quant.W4A16, "rows": (1, 8), "context": (64,)}],
    ids=lambda options: str(options["quant"]),
)
def test_a_bundle_of_the_best_quality(
    options: dict[str, Any],
    build: Callable[..., tuple[Path, Manifest]],
    tiny_checkpoint: Path,
    short_text: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With few steps; what is learned is stored as it is, and nothing rounded again."""
    monkeypatch.setattr("engine.compile.quantisation.learn.learning_plan.LAYER_RATES", (LearningRates(20, 2e-3, 5e-3),))
    monkeypatch.setattr("engine.compile.quantisation.learn.learning_plan.MODEL_RATES", (LearningRates(20, 3e-3, 0.0),))
    for rounding in ("integer_blocks.int4_blocks", "integer_graphs.int4_columns"):
        monkeypatch.setattr(f"engine.compile.quantisation.methods.{rounding}", lambda *_: pytest.fail("rounded again"))
    _, manifest = build(tiny_checkpoint, **options, quality=QualityLevel.BEST, calibration=short_text)
    quality = manifest.quality
    assert quality is not None
    assert quality.methods[-2:] == ("rounding and scales learned by layer", "scales learned end to end")
    *layers, last = quality.learned
    # A layer whose matrices all have 8 bits has nothing to learn.
    assert last == "KL" and layers and {*layers} <= {"layer 0", "layer 1"}
    most = {"KL": MOST_DIVERGENCE}  # for what the text's own tokens win
    assert all(error.learned <= most.get(of, 1) * error.chosen for of, error in quality.learned.items())
