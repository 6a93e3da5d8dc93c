"""int8: blocks of 8 bits, to which floats are rounded and into which 4-bit blocks of a file move."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.compile.arguments import CompileArguments, Quant, Target
from engine.compile.graphs.graph_builder import ROWS, GraphBuilder
from engine.compile.quantisation.methods.blocks import BlockForm, Blocks
from engine.compile.quantisation.methods.integer_blocks import int4_blocks, int8_blocks, int8_form
from engine.compile.quantisation.methods.method import FloatMatrix
from engine.compile.quantisation.methods.table import METHODS
from engine.compile.quantisation.weight_file import WeightFile


def weights(outputs: int, inputs: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((outputs, inputs)).astype(np.float32)


def test_floats_lose_half_a_step_of_their_block() -> None:
    """Also of blocks of zeros and of a width that no block divides."""
    weight = weights(3, 70)
    weight[1, :32] = 0
    blocks = int8_blocks(weight, weight.shape[1])
    assert blocks.codes.shape == (3, 3, 32)
    assert blocks.codes.min() >= 1
    steps = np.repeat(blocks.scales, 32, axis=1)[:, :70]
    assert np.all(np.abs(blocks.floats()[:, :70] - weight) <= steps * 0.501)
    assert np.all(blocks.floats()[1, :32] == 0)
    assert np.all(blocks.floats()[:, 70:] == 0)


def test_codes_of_four_bits_are_moved_not_rounded() -> None:
    """A stack of both becomes 8 bits, and loses nothing by it."""
    narrow = int4_blocks(weights(4, 96), 32, False)
    assert np.array_equal(int8_blocks(narrow, 96).floats(), narrow.floats()[:, :96])


@pytest.mark.parametrize("has_points", [False, True])
def test_small_blocks_and_zero_points_stay_where_there_is_room(has_points: bool) -> None:
    random = np.random.default_rng(5)
    points = random.integers(0, 256, (4, 6)).astype(np.uint8) if has_points else None
    codes, scales = random.integers(0, 256, (4, 6, 16)).astype(np.uint8), np.float32(random.random((4, 6)) + 0.1)
    given = Blocks(8, codes, scales, points)
    assert np.array_equal(int8_blocks(given, 96, 16, has_points).floats(), given.floats())
    assert not np.array_equal(int8_blocks(given, 96).floats(), given.floats())
    narrow = int4_blocks(weights(4, 96), 32, True)
    assert np.array_equal(int8_blocks(narrow, 96, 16, has_points).floats(), narrow.floats())


@pytest.mark.parametrize("rows", [1, 16])
def test_the_operator_reads_them_so(rows: int) -> None:
    """Inputs that int8 holds exactly: the product is that of the floats but for the order of sums."""
    blocks = int8_blocks(weights(48, 64), 64)
    inputs = np.sign(np.random.default_rng(3).standard_normal((rows, 64))).astype(np.float32)
    assert np.allclose(product(inputs, blocks), inputs @ blocks.floats().T, atol=1e-4)


def product(inputs: np.ndarray, blocks: Blocks) -> np.ndarray:
    outputs, count, block = blocks.codes.shape
    node = helper.make_node(
        "MatMulNBits",
        ["x", "w", "s"],
        ["y"],
        domain="com.microsoft",
        K=count * block,
        N=outputs,
        bits=8,
        block_size=block,
        accuracy_level=4,
    )
    stored = [numpy_helper.from_array(blocks.codes, "w"), numpy_helper.from_array(blocks.scales, "s")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(inputs.shape))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [len(inputs), outputs])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], stored), opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": inputs})[0])


ROTATED, PLAIN = BlockForm(8, 128, is_rotated=True), BlockForm(8)


@pytest.mark.parametrize(
    ("inputs", "is_npu", "form"),
    [(896, False, ROTATED), (576, False, ROTATED), (896, True, PLAIN), (64, False, PLAIN), (900, False, PLAIN)],
)
def test_blocks_are_wide_where_rows_hold_whole_ones(inputs: int, is_npu: bool, form: BlockForm) -> None:
    """A ninth more than a row has is little, twice as much is not; and runs of inputs are rotated whole."""
    assert int8_form(inputs, is_npu) == form


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("inputs", [256, 576])
def test_wide_blocks_over_rotated_inputs_lose_no_more_than_small_ones(rows: int, inputs: int, tmp_path: Path) -> None:
    """Inputs as models have them, one in a hundred ten times as large. Wide blocks as they stand lose twice as much."""
    random, weight = np.random.default_rng(4), weights(48, inputs)
    x = (random.standard_normal((rows, inputs)) * np.where(random.random(inputs) < 0.01, 10, 1)).astype(np.float32)
    wanted = x.astype(np.float64) @ weight.T.astype(np.float64)
    padded = np.pad(x, ((0, 0), (0, -inputs % 128)))
    lost = {
        "rotated": stored_product(tmp_path, x, weight),
        "small": product(x, int8_blocks(weight, inputs)),
        "wide": product(padded, int8_blocks(weight, inputs, 128)),
    }
    errors = {name: float(np.square(found - wanted).mean()) for name, found in lost.items()}
    assert errors["rotated"] < 1.3 * errors["small"] and errors["rotated"] < 0.6 * errors["wide"]


def stored_product(folder: Path, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Of a matrix as the method stores it, twice in one graph: what rotates the inputs is written once."""
    method, (outputs, inputs) = METHODS[Quant.INT8], weight.shape
    arguments = CompileArguments(folder, folder, target=Target.CPU, quant=Quant.INT8)
    with WeightFile(folder, "w.data") as file:
        matrix = method.store(file, FloatMatrix("m", outputs, inputs, iter([weight])), arguments)
    graph = GraphBuilder("float32", None)
    graph.add_input("x", "float32", 1, ROWS, inputs)
    products = [method.multiply(graph, "x", matrix) for _ in range(2)]
    for name in products:
        graph.add_output(name, "float32", 1, ROWS, outputs)
    model = graph.model("g")
    assert [node.op_type for node in model.graph.node].count("MatMul") == 1
    (folder / "g.onnx").write_bytes(model.SerializeToString())
    session = ort.InferenceSession(folder / "g.onnx", providers=["CPUExecutionProvider"])
    first, second = session.run(products, {"x": x[None]})
    assert np.array_equal(first, second)
    return np.asarray(first[0])
