"""The memory of a bundle by hand, told before it is loaded."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replaced

from engine.bundle.manifest import Manifest, load_manifest
from engine.bundle.model_spec import LayerAttention
from engine.bundle.variant import shape_table
from engine.config import EngineConfig
from engine.worker import assembly
from engine.worker.assembly import assemble, choose_shapes, settings_for
from engine.worker.settings import MemoryPlan, plan_memory
from tests.bundles import Bundles
from tests.hybrid import Hybrid

CONFIG = EngineConfig("")


def files_of(manifest: Manifest, *without: str) -> int:
    return sum(entry.bytes for name, entry in manifest.files.items() if name not in without)


def test_a_pool_bundle(bundles: Bundles) -> None:
    manifest = load_manifest(bundles("free"))
    plan = plan_memory(manifest, choose_shapes(manifest, CONFIG), CONFIG)
    assert plan == MemoryPlan(files_of(manifest), 4096, 4096 * 512, 256, 0, 1024**3)
    assert plan.together == files_of(manifest) + 4096 * 512 + 1024**3
    assert plan_memory(manifest, shape_table(manifest, 8), replace(CONFIG, prefix_cache=False)).prefixes == 0


def test_caches_of_fused_graphs(bundles: Bundles) -> None:
    """As many whole caches of 64 tokens as sequences may run."""
    manifest = load_manifest(bundles("fused 3"))
    config = settings_for(manifest, replace(CONFIG, max_running=9))
    plan = plan_memory(manifest, choose_shapes(manifest, config), config)
    assert (plan.slots, plan.caches, plan.prefixes) == (9 * 64, 9 * 64 * 512, 0)


def test_states_and_their_snapshots(hybrid: Hybrid) -> None:
    manifest = load_manifest(hybrid.bundle)
    config = settings_for(manifest, replace(CONFIG, max_running=10, kv_offload_mb=3))
    plan = plan_memory(manifest, choose_shapes(manifest, config), config)
    assert manifest.kv_bytes_per_token == 2 * 2 * 2 * 32 * 4  # of two layers out of eight
    assert plan.states == 10 * 2 * 6 * 4 * (4 * 16 * 24 + (2 * 2 * 16 + 4 * 24) * 3)
    assert (plan.caches, plan.prefixes) == (4096 * 1024, 3 * 1024**2)


def test_a_state_is_all_that_graphs_of_one_sequence_carry(bundles: Bundles) -> None:
    """A run writes it in place of the one it read: here keys and values of 127 tokens."""
    manifest = load_manifest(bundles("fixed"))
    graphs = [
        replaced(graph, inputs=tuple(replaced(each, name=each.name.replace("past_", "swa_")) for each in graph.inputs))
        for graph in manifest.graphs
    ]
    manifest = replaced(manifest, graphs=tuple(graphs))
    config = settings_for(manifest, replace(CONFIG, max_running=10))
    plan = plan_memory(manifest, choose_shapes(manifest, config), config)
    assert (plan.caches, plan.states) == (0, 10 * 127 * 512)
    assert "keys and values" not in str(plan)


def test_graphs_without_a_past_keep_tokens(bundles: Bundles) -> None:
    manifest = load_manifest(bundles("fixed"))
    graphs = tuple(replaced(graph, context=graph.rows) for graph in manifest.graphs)
    manifest = replaced(manifest, graphs=graphs)
    config = settings_for(manifest, CONFIG)
    assert plan_memory(manifest, choose_shapes(manifest, config), config).caches == 4096 * 4


def test_layers_with_a_window_take_less(bundles: Bundles) -> None:
    """Of two layers one sees 64 columns: a quarter of the 8,192 is kept there, all of them where bits must be equal."""
    manifest = load_manifest(bundles("segments"))
    layers = LayerAttention(64), LayerAttention()
    manifest = replaced(manifest, model=replaced(manifest.model, attention=layers))
    shapes = replace(shape_table(manifest, 8), max_past=8192)
    plan = plan_memory(manifest, shapes, CONFIG)
    each = manifest.kv_bytes_per_token // 2
    assert (plan.caches, plan.window_slots) == ((8192 + 2048) * each, 2048)
    assert "8,192 tokens (2,048 in layers with a window)" in str(plan)
    assert plan_memory(manifest, shapes, replace(CONFIG, deterministic=True)).caches == 8192 * 2 * each


def test_in_words() -> None:
    words = str(MemoryPlan(1_234_000_000, 4096, 7_300_000, 106, 4_280_000_000, 1_073_741_824))
    assert words == (
        "weights 1.23 GB, keys and values of 4,096 tokens 7.3 MB, states of 106 sequences 4.28 GB, "
        "snapshots of states 1.07 GB, together at most 6.60 GB"
    )
    plain = str(MemoryPlan(20_000_000, 64, 0, 256, 0, 1_073_741_824))
    assert (
        plain == "weights 0.02 GB, keys and values of 64 tokens 0.0 MB, host KV cache 1.07 GB, together at most 1.09 GB"
    )


@pytest.mark.parametrize(("machine", "level"), [(10**12, "INFO"), (1000, "WARNING"), (0, "INFO")])
def test_it_is_told_before_a_graph_is_opened(
    bundles: Bundles, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, machine: int, level: str
) -> None:
    monkeypatch.setattr(assembly, "usable_memory", lambda: machine)

    def no_runtime(folder: Path, *_: object) -> None:
        raise OSError("nothing is opened here")

    with caplog.at_level(logging.INFO, "hexserve.worker"), pytest.raises(OSError, match="nothing is opened"):
        assemble(replace(CONFIG, bundle=str(bundles("free"))), no_runtime)  # type: ignore[arg-type]
    (record,) = (record for record in caplog.records if record.message.startswith("memory: weights"))
    assert record.levelname == level
    assert ("the machine has" in record.message) == bool(machine)
