"""The embedding table's forms against their definitions."""

import numpy as np

from engine.compile.graphs.embedding import table_codes, table_encoding


def test_a_table_fills_its_codes() -> None:
    table = np.array([[-0.5, 0.0, 1.5], [0.25, 1.0, -0.1]], np.float32)
    encoding = table_encoding([table[:1], table[1:]])
    codes = np.concatenate(list(table_codes([table], encoding)))
    assert codes.dtype == np.uint16 and codes.min() == 0 and codes.max() == 65535
    np.testing.assert_allclose(encoding.decode(codes), table, atol=encoding.scale)
