"""Rotations of inputs: of whole rows, or of runs of them."""

from math import prod

import numpy as np
import onnxruntime as ort
import pytest

from engine.compile.graphs.graph_builder import ROWS, GraphBuilder
from engine.compile.quantisation.methods.hadamard import (
    flattest,
    hadamard,
    paley,
    rotate_rows,
    rotated_rows,
    rotated_runs,
    row_rotation,
)


@pytest.mark.parametrize("run", [32, 128])
def test_it_is_orthogonal_and_spreads_one_input_evenly(run: int) -> None:
    assert np.allclose(hadamard(run) @ hadamard(run).T, np.eye(run), atol=1e-6)
    assert np.allclose(np.abs(hadamard(run)), run**-0.5)


def test_each_run_of_a_row_is_rotated_for_itself() -> None:
    weight = np.random.default_rng(2).standard_normal((3, 96)).astype(np.float32)
    found = rotated_runs(weight)
    for start in (0, 32, 64):
        run = slice(start, start + 32)
        np.testing.assert_allclose(found[:, run], weight[:, run] @ hadamard(32), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [896, 4864, 1024, 2560, 1120])
def test_a_whole_row_is_rotated_evenly_by_few_products(size: int) -> None:
    left, right = row_rotation(size)
    assert len(left) * len(right) == size
    assert len(left) + len(right) < 160
    one, alike = np.eye(1, size, 5, dtype=np.float32), np.full((1, size), size**-0.5, np.float32)
    whole = rotated_rows(one)
    assert np.allclose(np.abs(whole), size**-0.5, atol=1e-6), "an outlier goes to all of them"
    assert np.abs(rotated_rows(alike)).max() < 0.4, "and numbers of one sign do not meet in one"
    rows = np.random.default_rng(1).standard_normal((4, size)).astype(np.float32)
    np.testing.assert_allclose(rotated_rows(rows) @ rotated_rows(rows).T, rows @ rows.T, rtol=1e-4, atol=1e-2)


def test_a_graph_rotates_as_weights_are() -> None:
    graph, shape = GraphBuilder("float32", None), (1, 3, 896)
    graph.add_input("x", "float32", 1, ROWS, shape[2])
    name = rotate_rows(graph, "x", shape[2])
    assert rotate_rows(graph, "x", shape[2]) == name, "once for all"
    graph.add_output(name, "float32", 1, ROWS, shape[2])
    x = np.random.default_rng(3).standard_normal(prod(shape)).astype(np.float32).reshape(shape)
    model = graph.model("g").SerializeToString()
    (found,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(found[0], rotated_rows(x[0]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", [12, 20, 28, 36, 44])
def test_rows_are_signs_and_orthogonal(order: int) -> None:
    matrix = paley(order)
    assert matrix is not None and set(np.unique(matrix)) == {-1, 1}
    assert np.array_equal(matrix @ matrix.T, order * np.eye(order))


def test_orders_without_a_construction() -> None:
    assert [paley(order) for order in (3, 16, 92)] == [None] * 3
    assert [len(flattest(size)) for size in (92, 46, 64, 576)] == [23, 23, 1, 36]
