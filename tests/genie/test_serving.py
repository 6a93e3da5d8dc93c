"""Generated Genie folders of every era, split and type give the tokens of the checkpoint itself."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from engine.bundle.check import check_contract
from engine.bundle.manifest import load_manifest
from engine.bundle.variant import StepShape
from engine.bundle.weight_files import read_head_weight
from tests.genie.generator import ERAS, Recipe, generate
from tests.genie.plain_loop import PlainLoop, Run
from tests.genie.served import served
from tests.genie.twin import convert_to_twin

PROMPT = [5, 17, 99, 123, 300, 42, 7, 8, 9, 10, 11]


def cpu_run(folder: Path) -> Run:
    sessions = {
        graph.name: ort.InferenceSession(str(folder / graph.file), providers=["CPUExecutionProvider"])
        for graph in load_manifest(folder).graphs
    }

    def run(name: str, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [item.name for item in sessions[name].get_outputs()]
        return dict(zip(names, sessions[name].run(names, dict(feed)), strict=True))

    return run


def tokens(checkpoint: Path, tmp_path: Path, recipe: Recipe, rows: int = 1) -> list[int]:
    folder = convert_to_twin(generate(checkpoint, tmp_path / "bundle", recipe), tmp_path / "cache")
    manifest = load_manifest(folder)
    weight = read_head_weight(folder, manifest)
    weights = {} if weight is None else {"weight": weight}
    return PlainLoop(manifest, cpu_run(folder), weights).greedy(PROMPT, 12, rows)


@pytest.fixture(scope="module")
def expected(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    recipe = Recipe(parts=1, precision="twin", shapes=(StepShape(1, 63),))
    return tokens(checkpoint, tmp_path_factory.mktemp("expected"), recipe)


@pytest.mark.parametrize("era", ERAS)
def test_every_era(checkpoint: Path, tmp_path: Path, expected: list[int], era: str) -> None:
    assert tokens(checkpoint, tmp_path, Recipe(era=era, precision="twin"), 8) == expected


@pytest.mark.parametrize(("parts", "head_alone"), [(1, False), (2, False), (3, True), (4, False), (5, True)])
def test_every_split(checkpoint: Path, tmp_path: Path, expected: list[int], parts: int, head_alone: bool) -> None:
    assert tokens(checkpoint, tmp_path, Recipe(parts=parts, head_alone=head_alone, precision="twin"), 8) == expected


@pytest.mark.parametrize("precision", ["w4", "w4a16"])
@pytest.mark.parametrize("scatter", [False, True])
def test_types(checkpoint: Path, tmp_path: Path, expected: list[int], precision: str, scatter: bool) -> None:
    recipe = Recipe(precision=precision, scatter=scatter, head_alone=True)
    assert tokens(checkpoint, tmp_path, recipe, 8) == expected


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(heads="_h"),
        Recipe(heads="_head_", scatter=True, index="uint32"),
        Recipe(caches="uint16", mask_depth=50.0),
        Recipe(mask_depth=1000.0, parts=2),
        Recipe(kv_only_rows=(8,)),
        Recipe(kv_only_rows=(8,), head_alone=True, parts=4, same_hidden_names=False),
        Recipe(kv_only_rows=(8,), parts=1),
        Recipe(head_alone=True, head_weight="lm_head.raw"),
        Recipe(head_alone=True, head_weight="lm_head.raw", precision="w4"),
    ],
    ids=[
        "a cache for each head",
        "the same written in place",
        "u16 caches and a shallow mask",
        "a deep mask",
        "prefill without logits",
        "prefill without logits and a lone head",
        "prefill without logits in one part",
        "a head that takes its weights",
        "a head that takes its weights in half precision",
    ],
)
def test_what_exporters_did_differently(checkpoint: Path, tmp_path: Path, expected: list[int], recipe: Recipe) -> None:
    assert tokens(checkpoint, tmp_path, recipe, 8) == expected


def test_several_contexts(checkpoint: Path, tmp_path: Path, expected: list[int]) -> None:
    shapes = (StepShape(1, 15), StepShape(1, 63), StepShape(8, 8), StepShape(8, 56))
    assert tokens(checkpoint, tmp_path, Recipe(precision="twin", shapes=shapes), 8) == expected


def test_hidden_names_may_differ_between_parts(checkpoint: Path, tmp_path: Path, expected: list[int]) -> None:
    recipe = Recipe(precision="twin", parts=4, same_hidden_names=False)
    assert tokens(checkpoint, tmp_path, recipe, 8) == expected


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(parts=1, precision="twin", shapes=(StepShape(64, 0),)),
        Recipe(parts=3, precision="twin", shapes=(StepShape(16, 0), StepShape(64, 0))),
        Recipe(parts=4, precision="w4", head_alone=True, shapes=(StepShape(64, 0),)),
        Recipe(parts=5, head_alone=True, shapes=(StepShape(64, 0),), same_hidden_names=False),
    ],
    ids=["one part", "two contexts", "half precision", "integers"],
)
def test_graphs_that_read_the_whole_context_each_time(
    checkpoint: Path, tmp_path: Path, expected: list[int], recipe: Recipe
) -> None:
    folder = convert_to_twin(generate(checkpoint, tmp_path / "bundle", recipe), tmp_path / "cache")
    check_contract(load_manifest(folder))
    cached = convert_to_twin(
        generate(checkpoint, tmp_path / "cached", replace(recipe, shapes=(StepShape(8, 56),))), tmp_path / "cache"
    )
    prompts = {"a": PROMPT, "b": PROMPT[3:], "c": [7], "d": [*PROMPT, *PROMPT]}
    found = served(folder, prompts, 12)
    assert found["a"] == expected
    if recipe.precision != "w4a16":  # u8 caches round what is read whole here
        assert found == served(cached, prompts, 12)
