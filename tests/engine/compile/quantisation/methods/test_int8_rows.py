"""int8 rows: what the operators give, beside the definition in integers."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from engine.compile.arguments import CompileArguments, Quant, Target
from engine.compile.graphs.graph_builder import ROWS, GraphBuilder
from engine.compile.quantisation.methods.hadamard import rotated_rows
from engine.compile.quantisation.methods.integer_rows import INT8_ROWS
from engine.compile.quantisation.methods.method import FloatMatrix
from engine.compile.quantisation.methods.table import METHODS
from engine.compile.quantisation.weight_file import WeightFile
from tests.engine.compile.quantisation.methods.operators import weights

OUTPUTS, INPUTS = 24, 96


def test_products_are_those_of_rounded_rows(tmp_path: Path) -> None:
    """Two matrices read rows that are rounded once; a row of zeros and one with an outlier are among them."""
    x = np.random.default_rng(4).standard_normal((1, 6, INPUTS)).astype(np.float32)
    x[0, 1], x[0, 2, 5] = 0, -40
    matrices = [weights(OUTPUTS, INPUTS), -2 * weights(OUTPUTS, INPUTS)]
    graph = GraphBuilder("float32", None)
    graph.add_input("x", "float32", 1, ROWS, INPUTS)
    with WeightFile(tmp_path, "w.data") as file:
        for index, matrix in enumerate(matrices):
            floats = FloatMatrix(f"m{index}", OUTPUTS, INPUTS, iter([matrix]))
            stored = INT8_ROWS.store(file, floats, CompileArguments(tmp_path, tmp_path))
            graph.add_output(INT8_ROWS.multiply(graph, "x", stored), "float32", 1, ROWS, OUTPUTS)
    model = graph.model("g")
    assert [node.op_type for node in model.graph.node].count("QuantizeLinear") == 1
    path = tmp_path / "g.onnx"
    path.write_bytes(model.SerializeToString())
    found = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    rows, row_scales = rounded(x[0])
    assert not found[0][0, 1].any()
    for product, matrix in zip(found, matrices, strict=True):
        codes, scales = rounded(matrix)
        wanted = (rows @ codes.T) * row_scales * scales.T
        np.testing.assert_allclose(product[0], wanted, rtol=1e-5, atol=1e-5)
        error = np.linalg.norm(product[0] - x[0] @ matrix.T) / np.linalg.norm(x[0] @ matrix.T)
        assert error < 0.03


def test_gate_and_up_are_rows_over_rotated_inputs(tmp_path: Path) -> None:
    """Apart as graphs multiply them, and both at once as adapters need them; an outlier of the inputs is spread."""
    inputs, method = 256, METHODS[Quant.INT8]
    x = np.random.default_rng(4).standard_normal((1, 6, inputs)).astype(np.float32)
    x[0, 2, 5] = 40
    both = np.concatenate([weights(OUTPUTS, inputs), -2 * weights(OUTPUTS, inputs)])
    graph = GraphBuilder("float32", None)
    graph.add_input("x", "float32", 1, ROWS, inputs)
    with WeightFile(tmp_path, "w.data") as file:
        floats = FloatMatrix("m", 2 * OUTPUTS, inputs, iter([both[:7], both[7:]]), parts=2)
        matrix = method.store(file, floats, CompileArguments(tmp_path, tmp_path, target=Target.CPU, quant=Quant.INT8))
    for name in [method.multiply(graph, "x", part) for part in matrix.halves()]:
        graph.add_output(name, "float32", 1, ROWS, OUTPUTS)
    graph.add_output(method.multiply(graph, "x", matrix), "float32", 1, ROWS, 2 * OUTPUTS)
    model = graph.model("g")
    assert [node.op_type for node in model.graph.node].count("QuantizeLinear") == 1
    path = tmp_path / "g.onnx"
    path.write_bytes(model.SerializeToString())
    first, second, whole = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert np.array_equal(whole, np.concatenate([first, second], axis=-1))
    rows, row_scales = rounded(rotated_rows(x[0]))
    codes, scales = rounded(rotated_rows(both))
    np.testing.assert_allclose(whole[0], (rows @ codes.T) * row_scales * scales.T, rtol=1e-4, atol=1e-3)
    wanted, plain = x[0] @ both.T, rounded(x[0])
    lost = np.linalg.norm(whole[0, 2] - wanted[2])
    assert lost < 0.5 * np.linalg.norm((plain[0] * plain[1])[2] @ both.T - wanted[2]), "of the row with the outlier"


@pytest.mark.parametrize(("amx", "is_robust", "block"), [(True, True, 0), (True, False, 128), (False, True, 128)])
def test_with_amx_robust_matrices_are_rows(amx: bool, is_robust: bool, block: int, tmp_path: Path) -> None:
    inputs, method = 256, METHODS[Quant.INT8]
    with WeightFile(tmp_path, "w.data") as file:
        floats = FloatMatrix("m", OUTPUTS, inputs, iter([weights(OUTPUTS, inputs)]), is_robust=is_robust)
        stored = method.store(file, floats, CompileArguments(tmp_path, tmp_path, quant=Quant.INT8, amx=amx))
    assert stored.block == block


def rounded(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest integers up to 127, and the scale of each row [rows, 1]."""
    scales = np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-30) / 127
    return np.rint(rows / scales), scales
