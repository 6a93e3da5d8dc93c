"""What the graphs of a bundle hold, and the weights that blocks of 4 bits stand for."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

FIRST, SECOND = "_1_of_2", "_2_of_2"


def stored(path: Path) -> dict[str, np.ndarray]:
    """By name; what is stored in one piece and multiplied in two halves is put together again."""
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    for name in [name for name in found if name.endswith(FIRST)]:
        whole = name.removesuffix(FIRST)
        found[whole] = np.concatenate([found.pop(name), found.pop(whole + SECOND)])
    return found


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
