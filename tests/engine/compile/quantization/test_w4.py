"""Blocks of a GGUF file are stored as they are, with what is added to their weights; floats beside them are rounded."""

from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from engine.compile.arguments import CompileArguments
from engine.compile.gguf.blocks import kept_blocks
from engine.compile.quantization.blocks import Blocks, Int4Blocks
from engine.compile.quantization.int4 import dequantised
from engine.compile.quantization.method import Float32, FloatMatrix, StoredMatrix
from engine.compile.quantization.w4 import W4
from engine.compile.weight_file import StoredTensor, WeightFile
from tests.engine.compile.quantization.operators import weights

Q4_1 = GGMLQuantizationType.Q4_1


def stored_floats(folder: Path, pieces: list[Float32 | Blocks], outputs: int) -> tuple[StoredMatrix, Float32]:
    """What the file holds, and the floats that it stands for."""
    with WeightFile(folder, "w4.data") as file:
        matrix = FloatMatrix("m", outputs, 96, iter(()), iter(pieces))
        stored = W4.store(file, matrix, CompileArguments(Path("a"), Path("b")))

    def read(tensor: StoredTensor, dtype: type[np.generic]) -> np.ndarray:
        return np.memmap(folder / tensor.file, dtype, "r", tensor.offset, tensor.dims)

    assert stored.scales is not None
    offsets = None if stored.offsets is None else read(stored.offsets, np.float32).T
    blocks = Int4Blocks(read(stored.weight, np.uint8), read(stored.scales, np.float32), None, offsets)
    return stored, dequantised(blocks, 96)


def q4_1(weight: np.ndarray) -> tuple[Blocks | None, np.ndarray]:
    content = quantize(weight, Q4_1)
    return kept_blocks(Q4_1, content), dequantize(content, Q4_1)


def test_blocks_with_a_lowest_value_are_kept(tmp_path: Path) -> None:
    blocks, expected = q4_1(weights())
    assert isinstance(blocks, Int4Blocks)
    stored, found = stored_floats(tmp_path, [blocks], 24)
    assert stored.offsets is not None and stored.offsets.dims == (3, 24)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_floats_beside_them_are_rounded_to_nearest(tmp_path: Path) -> None:
    blocks, expected = q4_1(weights())
    assert blocks is not None
    _, found = stored_floats(tmp_path, [blocks, weights(8)], 32)
    np.testing.assert_allclose(found[:24], expected, atol=1e-5)
    assert 0 < np.abs(found[24:] - weights(8)).max() < 2.1  # half a step of the outlier's block


def test_without_any_nothing_is_added(tmp_path: Path) -> None:
    stored, _ = stored_floats(tmp_path, [weights()], 24)
    assert stored.offsets is None
