"""Graphs that take adapters: transformers' numbers for merged weights in every family; others stay as they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine.adapters.adapter import read_adapters
from engine.bundle.check import check_contract
from engine.bundle.manifest import MANIFEST_FILE, Manifest, load_manifest
from engine.bundle.variant import shape_table
from engine.compile.arguments import CompileArguments, Layout, Quant
from engine.compile.plan import check_arguments, resolve_layout
from engine.errors import BundleError, CompileError
from engine.runtime.segmented import SegmentRuntime
from engine.runtime.sessions import cpu_provider
from tests.engine.adapters.peft_folders import changes, write_adapter
from tests.engine.compile.check.test_transformers_parity import CASES, oracle_logits
from tests.engine.runtime.test_onnx_lora import part, whole
from tests.engine.runtime.test_onnx_segments import run

Build = Callable[..., tuple[Path, Manifest]]
FAMILIES = ("llama-all-biases", "llama-own-head-dim", "mistral", "qwen2", "qwen3", "phi3-partial")


@pytest.mark.parametrize("case", FAMILIES)
def test_greedy_tokens_and_logits_of_merged_weights(
    case: str, make_oracle: Callable[..., tuple[Any, Path]], build: Build, prompt: list[int], tmp_path: Path
) -> None:
    """Also where a family stores matrices stacked, and where the query matrix carries the scale of attention."""
    family, options = CASES[case]
    model, source = make_oracle(family, **options)
    folder, manifest = build(source, quant=Quant.FP32, layout=Layout.SEGMENTS, lora=True)
    adapter = write_adapter(tmp_path / "adapter", manifest.lora, range(3), rank=5, alpha=10.0)
    with torch.no_grad():
        for path, change in changes(adapter, {"": 2.0}):
            model.get_submodule(path).weight += torch.tensor(change, dtype=torch.float32)
    adapters = read_adapters({"a": adapter}, manifest)
    runtime = SegmentRuntime(folder, manifest, shape_table(manifest, 64), cpu_provider(1), adapters)
    pages = tuple(range(6))
    measured = list(run(runtime, whole("a", tuple(prompt), pages)))
    text = [*prompt, int(measured[-1].argmax())]
    while len(text) < len(prompt) + 24:
        measured.extend(run(runtime, part("a", (text[-1],), len(text) - 1, pages)))
        text.append(int(measured[-1].argmax()))
    expected = oracle_logits(model, text[:-1])
    assert text[len(prompt) :] == [int(token) for token in expected.argmax(axis=1)[len(prompt) - 1 :]]
    assert np.abs(np.stack(measured) - expected).max() / np.abs(expected).max() < 1e-4


def test_a_bundle_that_was_not_asked_for_them_says_nothing_of_adapters(tiny_checkpoint: Path, build: Build) -> None:
    plain, taking = (
        build(tiny_checkpoint, quant=Quant.FP32, layout=Layout.SEGMENTS, lora=lora)[0] for lora in (False, True)
    )
    assert b"lora" not in (plain / MANIFEST_FILE).read_bytes()
    for file in plain.glob("*.onnx"):
        is_linear = file.name.startswith("linear")
        assert b"lora" not in file.read_bytes() and (b"lora" in (taking / file.name).read_bytes()) == is_linear
    assert [module.name for module in load_manifest(taking).lora] == [
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    ]


@pytest.mark.parametrize("field", ["inputs", "outputs", "path", "linear"])
def test_a_manifest_that_lies_about_adapters_is_refused(tiny_checkpoint: Path, build: Build, field: str) -> None:
    _, manifest = build(tiny_checkpoint, quant=Quant.FP32, layout=Layout.SEGMENTS, lora=True)
    check_contract(manifest)
    lies: dict[str, object] = {"inputs": 1 << 24, "outputs": 3, "path": "other", "linear": "down"}
    changed = msgspec.structs.replace(manifest.lora[0], **{field: lies[field]})
    with pytest.raises(BundleError, match="graph linear_"):
        check_contract(msgspec.structs.replace(manifest, lora=(changed, *manifest.lora[1:])))


@pytest.mark.parametrize(
    "options",
    [
        {"layout": Layout.POOL},
        {"rows": (1, 8), "context": (64,)},
        {"quant": Quant.W4A16, "rows": (1,), "context": (64,)},
    ],
)
def test_other_layouts_take_no_adapters(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(CompileError, match="--lora is for --layout segments"):
        check_arguments(CompileArguments(tmp_path, tmp_path / "out", lora=True, **options))


def test_a_head_size_that_has_no_segments_takes_no_adapters(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="needs a head size that 8 divides"):
        resolve_layout(CompileArguments(tmp_path, tmp_path / "out", lora=True), 12)
