"""Empty caches hold zero as each tensor's own encoding writes it."""

from pathlib import Path

import msgspec

from engine.bundle.manifest import GraphKind, GraphSpec, TensorSpec
from engine.bundle.tensor_names import Place
from engine.graphs.buffers import Pool, zero_codes
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
    assert (pool.relaid(12).keys[0, 1] == 7).all()
    second = Place(0, 0, 1).of(pool.keys, pool.values)
    assert second.shape == (1, 1, 4, 8) and second.flags.c_contiguous and (second == 7).all()
