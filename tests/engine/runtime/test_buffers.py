"""Buffers of pools and row inputs."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.bundle.manifest import GraphKind, GraphSpec, TensorSpec
from engine.bundle.tensors import Place
from engine.bundle.variant import StepShape
from engine.runtime.buffers import Arena, Pool, RowInputs, layers_of, zero_codes
from tests.engine.tiny_bundle import write_bundle


def cache(name: str, zero_point: int) -> TensorSpec:
    return TensorSpec(name, "uint8", (1, 1, 4, 8), 0.5, zero_point)


def test_every_head_may_have_its_own_zero(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path)
    inputs = (
        cache("past_key_0_h0_in", 128),
        cache("past_key_0_h1_in", 7),
        cache("past_value_0_in", 9),
    )
    graph = GraphSpec("ar1_cl9_1_of_1", "x.onnx", GraphKind.DEFAULT, 1, 1, inputs, (), 1, 9)
    model = msgspec.structs.replace(manifest.model, layers=1, kv_heads=2, head_dim=4)
    manifest = msgspec.structs.replace(manifest, model=model, graphs=(graph,), kv_dtype="uint8")
    pool = Pool(manifest, 8, zero_codes(manifest))
    assert (pool.keys.shape, pool.values.shape) == ((1, 2, 1, 4, 8), (1, 2, 1, 8, 4))
    assert (pool.keys[0, 0] == 128).all() and (pool.keys[0, 1] == 7).all() and (pool.values == 9).all()
    assert (pool.relaid(12, []).keys[0, 1] == 7).all()
    second = Place(0, 0, 1).of(pool.keys, pool.values)
    assert second.shape == (1, 1, 4, 8) and second.flags.c_contiguous and (second == 7).all()


def test_layers_are_those_whose_caches_a_graph_gives() -> None:
    outputs = (cache("past_key_3_out", 0), cache("past_value_2_out", 0), TensorSpec("logits", "float32", (1, 1, 9)))
    graph = GraphSpec("part", "x.onnx", GraphKind.DECODER, 1, 2, (), outputs, 1, 9)
    assert layers_of(graph) == slice(2, 4)
    assert layers_of(msgspec.structs.replace(graph, outputs=outputs[2:])) == slice(0, 0)


def test_scratch_memory_is_shared_until_it_is_too_small() -> None:
    arena, bytes_ = Arena(), np.dtype(np.uint8)
    first = arena.array("a", (4, 4), bytes_)
    assert np.shares_memory(first, arena.array("a", (4, 4), bytes_))
    assert np.shares_memory(first, arena.array("a", (2,), np.dtype(np.float64)))
    assert not np.shares_memory(first, arena.array("b", (4, 4), bytes_))
    larger = arena.array("a", (17,), bytes_)
    assert not np.shares_memory(first, larger) and np.shares_memory(larger, arena.array("a", (4, 4), bytes_))
    arena.clear()
    assert not np.shares_memory(larger, arena.array("a", (4, 4), bytes_))


def test_what_both_widths_have_survives_re_laying(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path)
    pool = Pool(manifest, 4, zero_codes(manifest))
    pool.keys[...] = np.arange(pool.keys.size).reshape(pool.keys.shape)
    pool.values[...] = np.arange(pool.values.size).reshape(pool.values.shape)
    wider, narrower = (pool.relaid(width, [(slice(same), slice(same))]) for width, same in ((6, 4), (3, 3)))
    assert (pool.width, wider.width, narrower.width) == (4, 6, 3)
    assert (wider.keys[..., :4] == pool.keys).all() and (wider.values[..., :4, :] == pool.values).all()
    assert not wider.keys[..., 4:].any() and not wider.values[..., 4:, :].any()
    assert (narrower.keys == pool.keys[..., :3]).all() and (narrower.values == pool.values[..., :3, :]).all()


@pytest.mark.parametrize(("dtype", "shape"), [("int32", (8,)), ("uint32", (1, 1, 1)), ("int64", (1, 8))])
def test_the_cache_index_is_the_first_column_behind_the_past_and_those_after_it(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    """One number for every row, or one for the first of them, as the graph has it."""
    inputs = RowInputs(Arena(), write_bundle(tmp_path), StepShape(8, 56), {})
    found = inputs.buffer(TensorSpec("cache_index", dtype, shape))
    assert found is not None and (found.dtype, found.shape) == (np.dtype(dtype), shape)
    assert found.ravel().tolist() == [56, 57, 58, 59, 60, 61, 62, 63][: found.size]
