"""The wide storage is the 4-bit model: int8 rows of what the stored codes stand for, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Layout, Quant

Build = Callable[..., tuple[Path, Manifest]]


def stored(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def meant(tensors: dict[str, np.ndarray], name: str, inputs: int) -> np.ndarray:
    """[outputs, inputs]: (code - zero) * scale, written once more from the operator's definition."""
    packed, scales = tensors[f"{name}_weight"], tensors[f"{name}_scales"]
    outputs, blocks, half = packed.shape
    codes = np.empty((outputs, blocks, 2 * half), np.float32)
    codes[..., 0::2], codes[..., 1::2] = packed & 15, packed >> 4
    zeros = np.full((outputs, blocks), 8, np.float32)
    if f"{name}_zeros" in tensors:
        pairs = tensors[f"{name}_zeros"]
        for block in range(blocks):
            zeros[:, block] = (pairs[:, block // 2] >> (4 * (block % 2))) & 15
    return ((codes - zeros[..., None]) * scales[..., None]).reshape(outputs, -1)[:, :inputs]


@pytest.mark.parametrize("options", [{}, {"block": 128}, {"asymmetric": True}])
def test_definition(options: dict[str, Any], make_oracle: Callable[..., tuple[Any, Path]], build: Build) -> None:
    _, source = make_oracle("Llama", hidden_size=72, intermediate_size=100, head_dim=16)
    folder, manifest = build(source, layout=Layout.SEGMENTS, **options)
    seen = set()
    for part in range(2, manifest.model.layers + 2):
        narrow = stored(folder / f"linear_{part}_of_4.onnx")
        wide = stored(folder / f"linear_{part}_of_4_wide.onnx")
        for name in (key.removesuffix("_weight") for key in narrow if key.endswith("_weight")):
            seen.add(name.rpartition("_")[2])
            floats = meant(narrow, name, wide[f"{name}_weight"].shape[0])
            peaks = np.abs(floats).max(axis=1)
            scales = peaks / np.float32(64)
            codes = np.rint(floats * (np.float32(1) / scales)[:, None]).astype(np.int8)
            assert np.array_equal(wide[f"{name}_scales"], scales)
            assert np.array_equal(wide[f"{name}_weight"], codes.T)
    assert seen == {"qkv", "output", "up", "down", "head"}


def test_only_4_bit_matrices_are_copied(tiny_checkpoint: Path, build: Build) -> None:
    """A head that is stored otherwise serves passes of any rows."""
    folder, _ = build(tiny_checkpoint, layout=Layout.SEGMENTS, quant=Quant.INT4, head=Quant.INT8)
    graph = onnx.load(folder / "linear_3_of_3_wide.onnx", load_external_data=False).graph
    (head,) = [tensor for tensor in graph.initializer if tensor.name == "head_weight"]
    assert {entry.value for entry in head.external_data if entry.key == "location"} == {"narrow.data"}
