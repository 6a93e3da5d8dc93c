"""A stacked matrix as two products: what each gives, beside the halves of the one product, on the CPU provider."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graphs.graph_builder import ROWS, GraphBuilder
from engine.compile.graphs.lowering import linear, linear_halves
from engine.compile.quantisation.methods.blocks import BlockForm, Blocks
from engine.compile.quantisation.methods.integer_blocks import int4_blocks
from engine.compile.quantisation.methods.method import Float32, FloatMatrix
from engine.compile.quantisation.methods.table import METHODS
from engine.compile.quantisation.packed import PackedLinear
from engine.compile.quantisation.weight_file import WeightFile

OUTPUTS, INPUTS = 24, 320  # ten blocks: sums are of two at a time


@pytest.mark.parametrize("quant", [Quant.FP32, Quant.INT4, Quant.INT8, Quant.KEEP])
@pytest.mark.parametrize("has_bias", [False, True])
def test_two_products_are_the_halves_of_one(quant: Quant, has_bias: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    with WeightFile(tmp_path, "w.data") as file:
        matrix = METHODS[quant].store(file, given(rng, quant), CompileArguments(tmp_path, tmp_path, quant=quant))
        bias = file.add("bias", rng.standard_normal(OUTPUTS).astype(np.float32)) if has_bias else None
    packed = PackedLinear(METHODS[quant], matrix, bias)
    graph = GraphBuilder("float32", None)
    graph.add_input("x", "float32", 1, ROWS, INPUTS)
    whole = linear(graph, "x", packed)
    outputs = [whole, *linear_halves(graph, "x", packed)]
    for name, width in zip(outputs, (OUTPUTS, OUTPUTS // 2, OUTPUTS // 2), strict=True):
        graph.add_output(name, "float32", 1, ROWS, width)
    path = tmp_path / "g.onnx"
    path.write_bytes(graph.model("g").SerializeToString())
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = rng.standard_normal((1, 5, INPUTS)).astype(np.float32)
    one, first, second = session.run(outputs, {"x": x})
    np.testing.assert_allclose(np.concatenate([first, second], axis=-1), one, rtol=1e-5, atol=1e-4)
    if quant is Quant.KEEP:
        floats = floats_of(blocks_with_offsets(np.random.default_rng(7)))
        wanted = x[0] @ floats.T + (0 if bias is None else read_bias(tmp_path, bias.offset))
        assert np.abs(one[0] - wanted).max() < 0.02 * np.abs(wanted).max()


def given(rng: np.random.Generator, quant: Quant) -> FloatMatrix:
    """Floats, or the blocks with offsets that a file may have."""
    if quant is not Quant.KEEP:
        floats = rng.standard_normal((OUTPUTS, INPUTS)).astype(np.float32)
        return FloatMatrix("m", OUTPUTS, INPUTS, iter([floats]))
    blocks = blocks_with_offsets(rng)
    pieces: Iterator[Float32 | Blocks] = iter([blocks])
    return FloatMatrix("m", OUTPUTS, INPUTS, iter([floats_of(blocks)]), pieces, BlockForm(4))


def blocks_with_offsets(rng: np.random.Generator) -> Blocks:
    plain = int4_blocks(rng.standard_normal((OUTPUTS, INPUTS)).astype(np.float32), 32, asymmetric=False)
    return replace(plain, offsets=rng.standard_normal(plain.scales.shape).astype(np.float32))


def floats_of(blocks: Blocks) -> NDArray[np.float32]:
    """[outputs, inputs]: (code - 8) * scale + offset."""
    assert blocks.offsets is not None
    values = (blocks.codes.astype(np.float32) - 8) * blocks.scales[..., None] + blocks.offsets[..., None]
    return np.asarray(values.reshape(OUTPUTS, INPUTS), np.float32)


def read_bias(folder: Path, offset: int) -> NDArray[np.float32]:
    return np.fromfile(folder / "w.data", np.float32, OUTPUTS, offset=offset)
