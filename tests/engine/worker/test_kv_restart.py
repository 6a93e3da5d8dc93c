"""A conversation goes on after a restart: its blocks are found again, and what is found is what was computed."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import ShapeTable
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.request import Request, SamplingParams
from engine.worker.assembly import Assembled, assemble
from engine.worker.kv_file import BlockFacts, CachedBlocks, KvFile, KvRestart, block_facts
from tests.bundles import Bundles
from tests.engine.worker.simulation import Simulation, by_hand, fixed, segmented, simulate

FAKE = BlockFacts("fake", "int64", 16, 16 * 2 * 8)
PROMPT = tuple(range(2, 46))  # two blocks and a half
KINDS: dict[str, dict[str, object]] = {
    "pool with a host cache": {"shapes": fixed((8, 248)), "offload_blocks": 64},
    "pool alone": {"shapes": fixed((8, 248))},
    "segments": {"shapes": segmented(32, 512)},
}


def world_of(kind: str, path: Path, most_bytes: int = 1 << 20) -> tuple[Simulation, KvRestart]:
    world = simulate(**KINDS[kind])  # type: ignore[arg-type]
    return world, KvRestart(KvFile(path, FAKE, most_bytes), CachedBlocks(world.scheduler, world.runtime))


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_is_found_after_a_restart(kind: str, tmp_path: Path) -> None:
    world, file = world_of(kind, tmp_path / "kv")
    assert file.restore() == 0
    world.submit("a", PROMPT, 24)
    world.run()
    assert file.save() == (len(PROMPT) + 24 - 1) // 16
    world, file = world_of(kind, tmp_path / "kv")
    assert file.restore() == 4
    turn = (*PROMPT, *by_hand(PROMPT, 24), 1, 2, 3)
    world.submit("b", turn, 9)
    world.submit("other", (9, *turn[1:]), 9)
    world.run()
    assert world.cached == {"b": 64, "other": 0}
    assert world.outputs["b"] == by_hand(turn, 9)
    assert world.outputs["other"] == by_hand((9, *turn[1:]), 9)


@pytest.mark.parametrize("kind", KINDS)
def test_what_runs_at_the_end_is_kept_as_far_as_it_was_computed(kind: str, tmp_path: Path) -> None:
    world, file = world_of(kind, tmp_path / "kv")
    world.submit("a", PROMPT, 60)
    for _ in range(12):
        world.step()
    assert file.save() >= 2
    world, file = world_of(kind, tmp_path / "kv")
    file.restore()
    world.submit("a", PROMPT, 60)
    world.run()
    assert world.cached["a"] == 32 and world.outputs["a"] == by_hand(PROMPT, 60)


def test_blocks_in_pools_and_in_the_host_cache_are_kept_alike(tmp_path: Path) -> None:
    """A pool of four blocks has been filled three times over: most prefixes have left it."""
    shapes = fixed((8, 64))
    world = simulate(shapes, offload_blocks=64)
    file = KvRestart(KvFile(tmp_path / "kv", FAKE, 1 << 20), CachedBlocks(world.scheduler, world.runtime))
    prompts = [tuple(range(first, first + 40)) for first in (1, 5, 9)]
    for number, prompt in enumerate(prompts):
        world.submit(f"s{number}", prompt, 3)
        world.run()
    assert len(world.scheduler.host_cache) and file.save() == 6
    world = simulate(shapes, offload_blocks=64)
    assert KvRestart(file.file, CachedBlocks(world.scheduler, world.runtime)).restore() == 6
    for number, prompt in enumerate(prompts):
        world.submit(f"s{number}", prompt, 3)
        world.run()
        assert world.cached[f"s{number}"] == 32
        assert world.outputs[f"s{number}"] == by_hand(prompt, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_keeps_what_was_used_last(kind: str, tmp_path: Path) -> None:
    world, file = world_of(kind, tmp_path / "kv", 3 * FAKE.record_bytes)
    for name, prompt in (("old", PROMPT), ("new", (7, *PROMPT))):
        world.submit(name, prompt, 3)
        world.run()
    assert file.save() == 3
    world, file = world_of(kind, tmp_path / "kv")
    assert file.restore() == 3
    world.submit("new", (7, *PROMPT), 3)
    world.run()
    assert world.cached["new"] == 32


def test_more_blocks_than_there_is_room_for(tmp_path: Path) -> None:
    world, file = world_of("pool alone", tmp_path / "kv")
    for number in range(4):
        world.submit(f"s{number}", tuple(range(number, number + 49)), 2)
        world.run()
    assert file.save() == 12
    world = simulate(fixed((8, 64)))
    assert KvRestart(file.file, CachedBlocks(world.scheduler, world.runtime)).restore() == 4
    world.submit("last", tuple(range(3, 52)), 2)
    world.run()
    assert world.cached["last"] == 48 and world.outputs["last"] == by_hand(tuple(range(3, 52)), 2)


def test_a_damaged_file_is_told_and_the_worker_serves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world, file = world_of("pool alone", tmp_path / "kv")
    world.submit("a", PROMPT, 24)
    world.run()
    file.save()
    content = bytearray(file.file.path.read_bytes())
    content[-1] ^= 1
    file.file.path.write_bytes(content)
    world, file = world_of("pool alone", tmp_path / "kv")
    with caplog.at_level(logging.WARNING, "hexserve.worker"):
        assert file.restore() == 3
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "it is damaged: block 3 is not what was written; 3 blocks were taken from it"
    ]
    world.submit("a", PROMPT, 24)
    world.run()
    assert world.outputs["a"] == by_hand(PROMPT, 24)


def test_a_file_of_something_else_ends_the_start_and_stays(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("a thesis")
    _, file = world_of("pool alone", tmp_path / "kv")
    with pytest.raises(BundleError, match="kv is not used: it is no file of cached blocks"):
        file.restore()
    assert (tmp_path / "kv").read_text() == "a thesis"


@pytest.mark.parametrize("number", [np.nan, np.inf, -1e30], ids=str)
def test_a_block_that_would_spoil_others_reaches_no_pool(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: float
) -> None:
    file = KvFile(tmp_path / "kv", BlockFacts("floats", "float32", 16, 64), 1 << 20)
    file.write(iter([(b"k" * 16, np.full(16, number, np.float32).tobytes())]))
    world = simulate(fixed((8, 64)))
    with caplog.at_level(logging.WARNING, "hexserve.worker"):
        assert KvRestart(file, CachedBlocks(world.scheduler, world.runtime)).restore() == 0
    assert "block 0 holds numbers that no cache has" in caplog.text
    assert world.scheduler.blocks.keyed() == []


def test_a_folder_that_is_gone_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world, file = world_of("pool alone", tmp_path / "gone" / "kv")
    world.submit("a", PROMPT, 3)
    world.run()
    with caplog.at_level(logging.WARNING, "hexserve.worker"):
        assert file.save() == 0
    assert caplog.records[0].message.endswith("cannot be written: No such file or directory")


SHAPES = [fixed((8, 96), (1, 103)), segmented(16, 96), fixed((4, 64), (8, 32))]


@settings(max_examples=40)
@given(
    lives=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 9)), max_size=6),
        min_size=2,
        max_size=4,
    ),
    shapes=st.sampled_from(SHAPES),
    offload=st.sampled_from([0, 6]),
    window=st.sampled_from([0, 20]),
    blocks=st.integers(0, 12),
    steps=st.integers(0, 30),
)
def test_restarts_at_any_time(
    tmp_path_factory: pytest.TempPathFactory,
    lives: list[list[tuple[int, int, int]]],
    shapes: ShapeTable,
    offload: int,
    window: int,
    blocks: int,
    steps: int,
) -> None:
    """Prompts of a few beginnings, a worker that ends while some run: what is found again is what was computed.

    window: of a pool, behind which blocks are free.
    """
    window = 0 if shapes.segmented else window
    file = KvFile(tmp_path_factory.mktemp("kv") / "kv", FAKE, blocks * FAKE.record_bytes)
    for life in lives:
        world = simulate(shapes, max_context=60, offload_blocks=0 if shapes.segmented else offload, window=window)
        restart = KvRestart(file, CachedBlocks(world.scheduler, world.runtime))
        assert restart.restore() <= blocks
        prompts = {}
        for number, (beginning, length, count) in enumerate(life):
            prompts[f"s{number}"] = (beginning, *range(16 + length)), count
            world.submit(f"s{number}", *prompts[f"s{number}"])
        for _ in range(steps):
            if world.scheduler.has_work:
                world.step()
        assert restart.save() <= blocks
        for name, (prompt, count) in prompts.items():
            expected = by_hand(prompt, count, limit=60, window=window)
            assert world.outputs[name] == (expected if name in world.finishes else expected[: len(world.outputs[name])])


LAYOUTS = ("free", "fixed", "segments", "segments int8 caches")
TEXT = tuple(5 + (7 * index) % 300 for index in range(70))


@contextmanager
def worker(config: EngineConfig) -> Iterator[Assembled]:
    made = assemble(config)
    try:
        yield made
        if made.kv_file is not None:
            made.kv_file.save()
    finally:
        made.loop.close()
        made.runtime.close()


def answer(made: Assembled, prompt: tuple[int, ...], count: int) -> tuple[list[int], int]:
    """The tokens, and how many of the prompt were cached."""
    made.loop.add(Request("a", prompt, SamplingParams(count, temperature=0.0)), (), 1, 0.0)
    tokens: list[int] = []
    cached = 0
    while made.loop.scheduler.has_work:
        for event in made.loop.step().events:
            tokens += event.token_ids
            cached = event.cached_tokens
    return tokens, cached


@pytest.mark.parametrize("layout", LAYOUTS)
def test_real_graphs_give_the_same_tokens_after_a_restart(bundles: Bundles, layout: str, tmp_path: Path) -> None:
    config = EngineConfig(bundle=str(bundles(layout)), deterministic=True, kv_file=str(tmp_path / "kv"))
    with worker(replace(config, kv_file="")) as made:
        expected = answer(made, TEXT, 24)
    with worker(config) as made:
        assert answer(made, TEXT, 24) == (expected[0], 0) == expected
    with worker(config) as made:
        assert answer(made, TEXT, 24) == (expected[0], 64)


def test_blocks_of_another_bundle_are_left_alone(
    bundles: Bundles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(bundle=str(bundles("free")), deterministic=True, kv_file=str(tmp_path / "kv"))
    with worker(config) as made:
        answer(made, TEXT, 4)
    with (
        caplog.at_level(logging.WARNING, "hexserve.worker"),
        worker(replace(config, bundle=str(bundles("fixed")))) as made,
    ):
        assert answer(made, TEXT, 4)[1] == 0
    assert "written for another bundle" in caplog.text


def test_facts_tell_weights_and_caches_apart(bundles: Bundles) -> None:
    found = [block_facts(bundles(layout), load_manifest(bundles(layout))) for layout in LAYOUTS]
    assert len({facts.identity for facts in found}) == len(LAYOUTS)
    assert [facts.cache for facts in found] == ["float32", "float32", "float32", "int8"]
    manifest = load_manifest(bundles("segments int4"))
    narrow = msgspec.structs.replace(manifest, graphs=manifest.graphs[:-1])
    folder = bundles("segments int4")
    assert block_facts(folder, manifest).identity != block_facts(folder, narrow).identity


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefix_cache": False}, "kv_file keeps what prefix_cache finds, which is off"),
        ({"kv_file": "/nowhere/at/all/kv"}, "its folder does not exist"),
        ({"kv_file": "~nobody-here/kv"}, "~nobody-here/kv names a home folder that does not exist"),
    ],
)
def test_settings_that_keep_nothing_are_refused(bundles: Bundles, change: dict[str, object], message: str) -> None:
    config = EngineConfig(bundle=str(bundles("free")), deterministic=True, kv_file="kv")
    with pytest.raises(BundleError, match=message):
        assemble(replace(config, **change))  # type: ignore[arg-type]


def test_a_worker_gets_the_time_that_its_file_takes() -> None:
    assert EngineConfig("").save_s == 0
    assert EngineConfig("", kv_file="kv", kv_offload_mb=2000).save_s == 45
