"""What a bundle stores is what was chosen, bit for bit."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bundle.manifest import GraphKind
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graphs.pool import one_part
from engine.compile.quantisation.choose.choose import ChosenCheckpoint, CodesFolder
from engine.compile.quantisation.choose.form import CodeForm
from engine.compile.quantisation.choose.matrices import groups_of
from engine.compile.quantisation.methods.blocks import unpack_nibbles
from engine.compile.quantisation.methods.method import StoredMatrix
from engine.compile.quantisation.methods.table import METHODS
from engine.compile.quantisation.packer import WeightPacker
from engine.compile.quantisation.rounding.codes import BlockCodes
from engine.compile.quantisation.weight_file import StoredTensor, WeightFile
from engine.compile.sources.source import FolderSource
from engine.models.family import read_network
from tests.engine.compile.quantisation.choose.texts import choose, random_texts

MakeOracle = Callable[..., tuple[Any, Path]]
CASES = [
    ("int4", 32, False),
    ("int4", 128, False),
    ("int4", 32, True),
    ("int4", 128, True),
    ("w4", 32, False),
    ("w4a16", 32, False),
]


def read(folder: Path, tensor: StoredTensor, dtype: type) -> np.ndarray:
    count = tensor.length // np.dtype(dtype).itemsize
    return np.fromfile(folder / tensor.file, dtype, count, offset=tensor.offset)


def stacked(codes: CodesFolder, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Codes [outputs, blocks, block], scales and zero points of several matrices."""
    found: list[BlockCodes] = [codes.read(name) for name in names]
    zeros = None if found[0].grid.zeros is None else np.concatenate([each.grid.zeros for each in found])
    return np.concatenate([each.codes for each in found]), np.concatenate([each.grid.scales for each in found]), zeros


def check_blocks(folder: Path, matrix: StoredMatrix, expected: tuple[Any, ...], scale_type: type) -> None:
    codes, scales, zeros = expected
    assert matrix.scales is not None
    assert np.array_equal(unpack_nibbles(read(folder, matrix.weight, np.uint8)), codes.reshape(-1))
    assert np.array_equal(read(folder, matrix.scales, scale_type).astype(np.float32), scales.reshape(-1))
    if zeros is not None and zeros.dtype == np.float32:
        assert matrix.offsets is not None and matrix.zero_points is None
        added = read(folder, matrix.offsets, scale_type).astype(np.float32)
        np.testing.assert_allclose(added, ((8 - zeros) * scales).reshape(-1), rtol=1e-3, atol=1e-6)
        return
    assert (matrix.zero_points is not None) == (zeros is not None)
    if matrix.zero_points is not None:
        stored = unpack_nibbles(read(folder, matrix.zero_points, np.uint8)).reshape(len(codes), -1)
        assert np.array_equal(stored[:, : zeros.shape[1]], zeros)


def check_integers(folder: Path, matrix: StoredMatrix, expected: tuple[Any, ...]) -> None:
    codes, scales, _ = expected
    assert matrix.scales is not None
    nibbles = unpack_nibbles(read(folder, matrix.weight, np.uint8)).reshape(matrix.inputs, matrix.outputs)
    assert np.array_equal(nibbles ^ 8, codes.reshape(len(codes), -1).T)  # two's complement
    assert np.array_equal(read(folder, matrix.scales, np.float32).reshape(-1, matrix.outputs), scales.T)


@pytest.mark.parametrize(("quant", "block", "asymmetric"), CASES)
@pytest.mark.parametrize("family", ["Qwen3", "Llama"])
def test_stored_codes_and_scales_are_the_chosen_ones(
    family: str, quant: str, block: int, asymmetric: bool, make_oracle: MakeOracle, tmp_path: Path
) -> None:
    """A Llama's queries are stored with the scale of attention: it multiplies scales, codes stay."""
    _, folder = make_oracle(family, hidden_size=128, intermediate_size=128, num_hidden_layers=1)
    arguments = CompileArguments(folder, tmp_path, quant=Quant(quant), block=block, asymmetric=asymmetric)
    source, form = FolderSource(folder), CodeForm.of(METHODS[Quant(quant)], arguments)
    assert form is not None
    network = read_network(source.config)
    dtype = "float16" if quant == "w4" else "float32"
    with source.tensors() as checkpoint:
        codes, _, _ = choose(checkpoint, network, tmp_path / "codes", random_texts(2, 32), form, None)
        packer = WeightPacker(ChosenCheckpoint(checkpoint, codes), network, arguments, lambda _: None)
        with WeightFile(tmp_path, "weights", dtype) as file, WeightFile(tmp_path, "small") as small:
            (layer,) = packer.pack(one_part(GraphKind.LINEAR, 1), file, small).layers
    for group, linear in zip(groups_of(network, 0), (layer.qkv, layer.output, layer.gate_up, layer.down), strict=True):
        kept, scales, zeros = stacked(codes, group.tensors)
        if family == "Llama" and group.kind == "qkv":
            scales = scales.copy()
            scales[: network.query_width] *= np.float32(1 / math.sqrt(network.spec.head_dim))
        if quant == "w4a16":
            check_integers(tmp_path, linear.matrix, (kept, scales, zeros))
        else:
            if quant == "w4":
                scales = scales.astype(np.float16)
            check_blocks(tmp_path, linear.matrix, (kept, scales, zeros), np.float16 if quant == "w4" else np.float32)
