"""Whole compilations: what the manifest says, that nothing is left behind, and that layouts agree with the CPU."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bundle.manifest import Manifest, load_manifest
from engine.bundle.specs import ModelTask
from engine.compile.arguments import CompileArguments, Layout, QualityLevel, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.sources.source import FolderSource
from engine.compile.targets.encoder import compile_encoder
from engine.errors import CompileError
from tests.engine.compile.quantisation.choose.test_quality import Notes
from tests.tiny_encoder import write_encoder


def compiled(source: Path, output: Path, **options: Any) -> Manifest:
    arguments = CompileArguments(source, output, **{"quality": QualityLevel.GOOD, **options})
    return compile_bundle(arguments, SilentProgress())


CASES: dict[str, dict[str, Any]] = {
    "segments": {},
    "pool": {"layout": Layout.POOL},
    "asymmetric": {"asymmetric": True},
    "w4a16": {"quant": Quant.W4A16, "rows": (8,), "context": (64,)},
    "w8a16": {"quant": Quant.W8A16, "rows": (8,), "context": (64,)},
    "fused": {"layout": Layout.FUSED, "rows": (8,), "context": (64,)},
    "float head": {"head": Quant.FP32},
    "head of 4 bits": {"head": Quant.INT4},
    "adapters": {"lora": True},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_every_layout_is_compiled(
    options: dict[str, Any], tiny_checkpoint: Path, short_text: Path, tmp_path: Path
) -> None:
    manifest = compiled(tiny_checkpoint, tmp_path / "good", calibration=short_text, **options)
    quality = load_manifest(tmp_path / "good").quality
    assert quality == manifest.quality
    assert quality is not None
    assert quality.level == "good"
    assert quality.tokens > 0
    assert quality.peak_bytes > 0
    quant = options.get("quant")
    has_head = options.get("head") is Quant.INT4 or quant is not None
    assert {"down"} < set(quality.errors) <= {"qkv", "output", "gate_up", "down", "head"}
    assert ("head" in quality.errors) == has_head
    assert 0 < quality.wide < 1 or quant is Quant.W8A16
    assert all(0 < error.chosen < error.nearest for error in quality.errors.values())
    assert {path.name for path in (tmp_path / "good").iterdir()} == {*manifest.files, "manifest.json"}


def test_the_log_says_beforehand_how_long_it_takes(tiny_checkpoint: Path, short_text: Path, tmp_path: Path) -> None:
    notes = Notes()
    arguments = CompileArguments(tiny_checkpoint, tmp_path / "good", quality=QualityLevel.GOOD, calibration=short_text)
    compile_bundle(arguments, notes)
    (told,) = (text for text in notes.texts if text.startswith("quality good: "))
    assert re.fullmatch(r"quality good: about \d+ s on two cores and \d\.\d GB for [\d,]+ tokens of text", told), told
    assert notes.texts.index(told) < next(place for place, text in enumerate(notes.texts) if "8 bits" in text)


def test_embedders(tiny_checkpoint: Path, short_text: Path, tmp_path: Path) -> None:
    fast = compiled(tiny_checkpoint, tmp_path / "fast", quality=QualityLevel.FAST, task=ModelTask.EMBED)
    options = {"task": ModelTask.EMBED, "calibration": short_text}
    good = compiled(tiny_checkpoint, tmp_path / "good", quality=QualityLevel.GOOD, **options)
    assert good.quality is not None
    assert "head" not in good.quality.errors
    assert good.parity["cosine"] > fast.parity["cosine"]


def test_encoders_take_fast_only(tmp_path: Path) -> None:
    write_encoder(tmp_path / "model")
    arguments = CompileArguments(tmp_path / "model", tmp_path / "out", quant=Quant.INT4, quality=QualityLevel.GOOD)
    with pytest.raises(CompileError, match="--quality good is for models that generate"):
        compile_encoder(arguments, FolderSource(arguments.source), SilentProgress())
    assert not (tmp_path / "out").exists()


def test_inputs_that_are_not_finite_are_refused(
    tiny_checkpoint: Path, short_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "engine.compile.quantisation.choose.choose.gated", lambda stacked, _: np.full_like(stacked[:, ::2], np.nan)
    )
    with pytest.raises(CompileError, match="not finite"):
        compiled(tiny_checkpoint, tmp_path / "good", calibration=short_text)
    assert not (tmp_path / "good").exists()
