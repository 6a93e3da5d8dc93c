"""Bytes of a preallocated cache."""

import numpy as np

from engine.compile.graphs.block_description import kv_cache_bytes


def test_the_cache_of_28_layers_and_2048_columns_takes_234_9_mb() -> None:
    size = kv_cache_bytes(layers=28, kv_heads=8, columns=2048, head_dim=128, item_bytes=2)
    assert size == 234_881_024
    assert round(size / 1e6, 1) == 234.9


def test_it_is_the_size_of_the_array() -> None:
    assert kv_cache_bytes(3, 2, 5, 7, 4, batch=6) == np.zeros((3, 2, 6, 2, 5, 7), np.float32).nbytes
