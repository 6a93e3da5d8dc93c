"""Blocks of a GGUF file are stored as they are, with what is added to their weights; floats beside them are rounded."""

from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from engine.compile.arguments import CompileArguments
from engine.compile.quantisation.methods.blocks import Blocks, unpack_nibbles
from engine.compile.quantisation.methods.integer_blocks import W4, int4_blocks
from engine.compile.quantisation.methods.method import Float32, FloatMatrix, StoredMatrix
from engine.compile.quantisation.weight_file import StoredTensor, WeightFile
from engine.compile.sources.gguf.arrangement import kept_blocks
from tests.engine.compile.quantisation.methods.operators import weights

Q4_0, Q4_1, Q4_K = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q4_K


def stored_floats(
    folder: Path, pieces: list[Float32 | Blocks], outputs: int, inputs: int = 96
) -> tuple[StoredMatrix, Float32]:
    """What the file holds, and the floats that it stands for."""
    with WeightFile(folder, "w4.data") as file:
        matrix = FloatMatrix("m", outputs, inputs, iter(()), iter(pieces))
        stored = W4.store(file, matrix, CompileArguments(Path("a"), Path("b")))

    def read(tensor: StoredTensor, dtype: type[np.generic]) -> np.ndarray:
        return np.memmap(folder / tensor.file, dtype, "r", tensor.offset, tensor.dims)

    assert stored.scales is not None
    offsets = None if stored.offsets is None else read(stored.offsets, np.float32)
    codes = unpack_nibbles(read(stored.weight, np.uint8))
    blocks = Blocks(4, codes, read(stored.scales, np.float32), offsets=offsets)
    return stored, blocks.floats()[:, :inputs]


def q4_1(weight: np.ndarray) -> tuple[Blocks | None, np.ndarray]:
    content = quantize(weight, Q4_1)
    return kept_blocks(Q4_1, content), dequantize(content, Q4_1)


def test_blocks_with_a_lowest_value_are_kept(tmp_path: Path) -> None:
    blocks, expected = q4_1(weights())
    assert blocks is not None and blocks.bits == 4
    stored, found = stored_floats(tmp_path, [blocks], 24)
    assert stored.offsets is not None and stored.offsets.dims == (24, 3)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("kind", "adds"), [(Q4_0, False), (Q4_K, True)])
def test_codes_of_a_file_are_kept(kind: GGMLQuantizationType, adds: bool, tmp_path: Path) -> None:
    """The very codes: what is stored stands for the floats that the file stands for."""
    content = contents(kind)
    blocks, expected = kept_blocks(kind, content), dequantize(content, kind)
    assert blocks is not None and blocks.bits == 4
    stored, found = stored_floats(tmp_path, [blocks], len(content), expected.shape[1])
    assert (stored.offsets is not None) == adds
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def contents(kind: GGMLQuantizationType) -> np.ndarray:
    """Rows of a file: of Q4_0 as it is made of floats; of Q4_K, which the package only reads, any codes and scales."""
    if kind is Q4_0:
        return quantize(weights(), kind)
    rows = np.random.default_rng(3).integers(0, 256, (8, 144), np.uint8)
    rows[:, :4] = np.array([[0.01, 0.02]], np.float16).view(np.uint8)  # of scales and of lowest values
    return rows


def test_floats_beside_them_are_rounded_to_nearest(tmp_path: Path) -> None:
    blocks, expected = q4_1(weights())
    assert blocks is not None
    _, found = stored_floats(tmp_path, [blocks, weights(8)], 32)
    np.testing.assert_allclose(found[:24], expected, atol=1e-5)
    assert 0 < np.abs(found[24:] - weights(8)).max() < 2.1  # half a step of the outlier's block


def test_floats_that_were_blocks_once_are_those_blocks_again(tmp_path: Path) -> None:
    """A grid of steps from a lowest value, as Q4_1 has it: rounding to nearest finds it."""
    _, expected = q4_1(weights())
    _, found = stored_floats(tmp_path, [expected], 24)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_to_kept_blocks_without_offsets_nothing_is_added(tmp_path: Path) -> None:
    stored, _ = stored_floats(tmp_path, [int4_blocks(weights(), 32, asymmetric=False)], 24)
    assert stored.offsets is None
