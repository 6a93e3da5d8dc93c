"""Settings over fused graphs: how many caches there are, and what is refused by name."""

from dataclasses import replace

import pytest

from engine.bundle.manifest import Manifest, load_manifest
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.worker.assembly import assemble, choose_shapes, settings_for
from engine.worker.settings import fused_settings
from tests.bundles import Bundles

CACHE = 64
BUDGET = 1 << 30


@pytest.fixture
def manifest(bundles: Bundles) -> Manifest:
    return load_manifest(bundles("fused 3"))


def test_as_many_caches_as_sequences_may_run_and_memory_holds(manifest: Manifest) -> None:
    plain = EngineConfig("", max_running=9)
    cache_bytes = 65 * manifest.kv_bytes_per_token
    assert fused_settings(manifest, plain, BUDGET).kv_slots == 9 * CACHE
    assert fused_settings(manifest, plain, 6 * cache_bytes).kv_slots == 6 * CACHE
    assert fused_settings(manifest, plain, cache_bytes).kv_slots == 4 * CACHE  # what one step uses
    assert fused_settings(manifest, replace(plain, kv_slots=200), BUDGET).kv_slots == 3 * CACHE


def test_nothing_is_shared_offloaded_or_held_back(manifest: Manifest) -> None:
    settled = settings_for(manifest, EngineConfig(""))
    assert (settled.prefix_cache, settled.kv_offload_mb, settled.reserve_tokens) == (False, 0, 0)
    shapes = choose_shapes(manifest, settled)
    assert (shapes.slots, shapes.segmented, [shape.rows for shape in shapes.fixed]) == (3, True, [1, 3, 8, 16])
    pinned = choose_shapes(manifest, replace(settled, deterministic=True))
    assert (pinned.slots, [shape.rows for shape in pinned.fixed]) == (3, [16])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lookup_rows": 4}, "lookup_rows: a fused graph has one row for each decode"),
        ({"draft": "another"}, "draft: a fused graph has one row for each decode"),
        ({"kv_file": "kept"}, "kv_file: this bundle, as it is run here, has no cached blocks"),
        ({"kv_slots": 63}, "kv_slots: 63 are fewer than the 64 of one cache"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(bundles: Bundles, changes: dict[str, object], words: str) -> None:
    with pytest.raises(BundleError, match=words):
        assemble(EngineConfig(str(bundles("fused 3")), **changes))  # type: ignore[arg-type]


def test_a_fused_bundle_is_no_draft(bundles: Bundles) -> None:
    with pytest.raises(BundleError, match="draft: fused graphs cannot guess"):
        assemble(EngineConfig(str(bundles("same past")), draft=str(bundles("fused"))))


def test_the_worker_says_which_graphs_it_serves(bundles: Bundles) -> None:
    assembled = assemble(EngineConfig(str(bundles("fused 3")), threads=1))
    names = ("model.0.s1", "model.0.d3", "model.0.pd.s8.d3", "model.0.pd.s16.d3")
    assert assembled.ready.variants == names
    assert assembled.ready.max_tokens_per_sequence == CACHE + 1
    assembled.loop.close()
    assembled.runtime.close()
