"""The embedding table's forms against their definitions."""

import numpy as np

from engine.compile.graphs.embedding import int8_rows, table_codes, table_encoding
from tests.engine.compile.quantisation.methods.operators import weights


def test_int8_rows() -> None:
    """A row of a table has its own scale."""
    matrix = weights()
    integers, scales = int8_rows(matrix)
    assert scales.shape == (24, 1)
    assert (np.abs(integers * scales - matrix) <= 0.501 * scales).all()


def test_a_table_fills_its_codes() -> None:
    table = np.array([[-0.5, 0.0, 1.5], [0.25, 1.0, -0.1]], np.float32)
    encoding = table_encoding([table[:1], table[1:]])
    codes = np.concatenate(list(table_codes([table], encoding)))
    assert codes.dtype == np.uint16 and codes.min() == 0 and codes.max() == 65535
    np.testing.assert_allclose(encoding.decode(codes), table, atol=encoding.scale)
