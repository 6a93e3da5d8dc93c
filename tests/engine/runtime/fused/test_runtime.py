"""Tiny fused graphs on the CPU provider: tokens, caches, poison, promotion, failures."""

from dataclasses import replace

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.errors import StepFailed
from engine.request import Request, SamplingParams
from engine.runtime.qnn.provider import NPU
from engine.runtime.sessions import cpu_provider
from engine.worker.assembly import assemble
from tests.bundles import Bundles
from tests.engine.runtime.fused.steps import HandSteps, opened

PROMPT = (5, 17, 99, 123, 77, 42, 7, 11, 200, 31, 8)
OTHER = (9, 9, 140, 3, 250, 61, 12)
LAYOUTS = ["fused", "fused 3"]


def greedy(folder: str, clients: int, **settings: object) -> dict[str, list[int]]:
    """What a whole engine answers to requests of different lengths that come together."""
    assembled = assemble(EngineConfig(folder, threads=1, **settings))  # type: ignore[arg-type]
    loop, outputs = assembled.loop, {str(index): [] for index in range(clients)}
    for index in range(clients):
        prompt = tuple((index * 37 + place * 13 + 5) % 300 for place in range(3 + 6 * index))
        params = SamplingParams(max_tokens=6 + 5 * index, temperature=0.0)
        loop.add(Request(str(index), prompt, params), (), 1, 0.0)
    while loop.scheduler.has_work:
        for event in loop.step().events:
            outputs[event.id].extend(event.token_ids)
    loop.close()
    assembled.runtime.close()
    return outputs


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("settings", [{}, {"deterministic": True}, {"kv_slots": 2 * 64}])
def test_greedy_tokens_are_those_of_the_row_graph(bundles: Bundles, layout: str, settings: dict[str, object]) -> None:
    found = greedy(str(bundles(layout)), 6, **settings)
    assert found == greedy(str(bundles("same past")), 6)
    assert sum(map(len, found.values())) > 60


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("by_graph", [True, False])
def test_packed_equals_separate(bundles: Bundles, layout: str, by_graph: bool) -> None:
    """A prompt beside decodes comes to the bits it comes to alone, and so do the decodes."""
    with opened(bundles, layout, by_graph) as runtime:
        alone = HandSteps(runtime)
        first = alone.run(8, (0, PROMPT[:4]))
        second = alone.run(8, (0, PROMPT[4:7]))
        alone.run(8, (1, OTHER[:5]))
        decoded = alone.run(8, (1, (33,)))
        together = HandSteps(runtime)
        together.run(8, (3, OTHER[:5]))
        pair = together.run(8, (2, PROMPT[:4]), (3, (33,)))
        np.testing.assert_array_equal(pair, np.concatenate([first, decoded]))
        third = together.run(8, (2, PROMPT[4:7]), (3, (34,)))
        np.testing.assert_array_equal(third[0], second[0])
        for mine, theirs in ((0, 2), (1, 3)):
            keys, values = together.computed(theirs)
            count = len(alone.tokens[mine])
            np.testing.assert_array_equal(keys[..., :count], alone.computed(mine)[0])
            np.testing.assert_array_equal(values[..., :count, :], alone.computed(mine)[1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_way_to_update_gives_equal_caches(bundles: Bundles, layout: str) -> None:
    """By the graph in the memory of its inputs, by the host: byte for byte."""
    found = {}
    for by_graph in (True, False):
        with opened(bundles, layout, by_graph) as runtime:
            steps = HandSteps(runtime)
            logits = [steps.run(16, (0, PROMPT)), steps.run(8, (1, OTHER[:4]), (0, (3,)))]
            logits += [steps.run(8, (1, OTHER[4:6]), (0, (4,))), steps.run(1, (1, (50,))), steps.run(1, (0, (5,)))]
            logits.append(steps.run(16, (2, OTHER), (1, (51,))))
            found[by_graph] = (logits, [steps.computed(number) for number in range(3)])
    for got, want in zip(found[True][0], found[False][0], strict=True):
        np.testing.assert_array_equal(got, want)
    for got_pair, want_pair in zip(found[True][1], found[False][1], strict=True):
        for side in range(2):
            np.testing.assert_array_equal(got_pair[side], want_pair[side])


def test_the_graph_writes_in_place_but_on_a_device(bundles: Bundles) -> None:
    device = replace(cpu_provider(1), device=NPU)
    with opened(bundles, provider=device) as runtime:
        assert not runtime.by_graph


def test_the_graph_writes_in_place(bundles: Bundles) -> None:
    with opened(bundles) as runtime:
        assert runtime.by_graph
        steps = HandSteps(runtime)
        steps.run(8, (0, OTHER[:3]))
        before = steps.cache(0)
        address = before.keys.ctypes.data
        steps.run(8, (0, OTHER[3:5]))
        assert steps.cache(0) is before
        assert before.keys.ctypes.data == address


def test_a_graph_without_updated_caches_leaves_them_to_the_host(bundles: Bundles) -> None:
    with opened(bundles, "fused host") as runtime:
        assert not runtime.by_graph
        steps = HandSteps(runtime)
        found = [steps.run(8, (0, PROMPT[:5])), steps.run(8, (0, PROMPT[5:]))]
    with opened(bundles, "fused") as runtime:
        twin = HandSteps(runtime)
        np.testing.assert_array_equal([twin.run(8, (0, PROMPT[:5])), twin.run(8, (0, PROMPT[5:]))], found)


def test_a_finished_prompt_becomes_a_decode_and_the_caches_change_places(bundles: Bundles) -> None:
    """Nothing is copied: each cache stays where it is, and the next step binds it to the other input."""
    with opened(bundles) as runtime:
        steps = HandSteps(runtime)
        steps.run(8, (0, OTHER[:5]))
        steps.run(8, (1, PROMPT[:4]), (0, (33,)))
        prompt, decode = (cache for _, cache in runtime._used)
        keys = [cache.keys.ctypes.data for cache in (prompt, decode)]
        computed = steps.computed(1)
        runtime.blocks.free([0])  # the decode has ended, the prompt takes its place, another prompt comes
        steps.tokens.pop(0)
        steps.run(8, (2, PROMPT[:3]), (1, (7,)))
        swapped = [cache for _, cache in runtime._used]
        assert (swapped[1], swapped[0]) == (prompt, decode)
        assert [swapped[1].keys.ctypes.data, swapped[0].keys.ctypes.data] == keys
        np.testing.assert_array_equal(steps.computed(1)[0][..., :4], computed[0])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("by_graph", [True, False])
def test_nobody_sees_another_cache_or_a_stale_column(bundles: Bundles, layout: str, by_graph: bool) -> None:
    """Poison wherever a row must not look: others' caches, columns behind the past, rows that hold nothing."""
    with opened(bundles, layout, by_graph) as runtime:
        steps = HandSteps(runtime)
        steps.run(8, (0, PROMPT[:4]))
        steps.run(8, (1, OTHER[:5]))
        batch = steps.batch(8, (0, PROMPT[4:6]), (1, (33,)))
        clean = runtime.run(batch).decoded().copy()
        for victim, other in ((0, 1), (1, 0)):
            kept = [steps.cache(number).keys.copy() for number in range(2)]
            for number in range(2):
                past = len(steps.tokens[number])
                steps.cache(number).keys[..., past:] = 3e4
                steps.cache(number).values[..., past:, :] = -3e4
            steps.cache(other).keys[...] = 3e4
            steps.cache(other).values[...] = -3e4
            runtime._caches.blank.keys[...] = 3e4
            poisoned = steps.batch(8, (0, PROMPT[4:6]), (1, (33,)))
            poisoned.input_ids[: poisoned.segments[0].start] = 250
            rows = {0: (0, 2), 1: (1, 1)}[other]
            start = poisoned.segments[rows[0]].start
            poisoned.input_ids[start : start + rows[1]] = 251
            np.testing.assert_array_equal(runtime.run(poisoned).decoded()[victim], clean[victim])
            for number in range(2):
                steps.cache(number).keys[...] = kept[number]
            runtime._caches.free([0, 1])
            steps.tokens.clear()
            steps.run(8, (0, PROMPT[:4]))
            steps.run(8, (1, OTHER[:5]))


def test_a_row_that_is_not_kept_is_as_if_it_had_never_been(bundles: Bundles) -> None:
    with opened(bundles) as runtime:
        steps = HandSteps(runtime)
        steps.run(8, (0, PROMPT[:5]))
        expected = runtime.run(steps.batch(1, (0, (33,)))).decoded().copy()
        runtime.run(steps.batch(8, (0, (250, 251, 252))))
        np.testing.assert_array_equal(steps.run(1, (0, (33,))), expected)


@pytest.mark.parametrize("by_graph", [True, False])
def test_a_failed_step_leaves_the_caches_as_they_were(bundles: Bundles, by_graph: bool) -> None:
    with opened(bundles, "fused", by_graph) as runtime:
        steps = HandSteps(runtime)
        steps.run(8, (0, PROMPT[:5]))
        before = steps.computed(0)
        with pytest.raises(StepFailed, match=r"model\.0\.pd\.s8 failed"):
            runtime.run(steps.batch(8, (1, (10**6, 3)), (0, (4,))))  # an id beyond the vocabulary
        with pytest.raises(StepFailed, match="overflow a cache of 64 KV slots"):
            steps.tokens[0] = [1] * 64
            runtime.run(steps.batch(1, (0, (4,))))
        steps.tokens[0] = list(PROMPT[:5])
        np.testing.assert_array_equal(steps.computed(0)[0], before[0])
        assert np.isfinite(steps.run(1, (0, (3,)))).all()


def test_a_cache_with_numbers_that_are_not_finite_is_cleaned_before_it_serves_again(bundles: Bundles) -> None:
    with opened(bundles) as runtime:
        steps = HandSteps(runtime)
        expected = steps.run(8, (0, PROMPT[:5]))
        runtime.blocks.free([0])
        steps.tokens.clear()
        batch = steps.batch(8, (0, OTHER[:3]))
        runtime.run(batch)
        assert runtime._last is not None
        runtime._last[0].fresh.keys[0, 0, 0, 0, 5] = np.nan  # the second of the prompt's rows 4 to 6
        runtime._used[0][1].keys[0, 0, 0, 0, :20] = np.nan
        start = batch.segments[0].start
        assert runtime.non_finite_rows(np.arange(start, start + 3)).tolist() == [start + 1]
        for _ in range(3):  # whichever spare cache is taken
            np.testing.assert_array_equal(steps.run(8, (0, PROMPT[:5])), expected)
            runtime.blocks.free([0])
            steps.tokens.clear()


def test_a_cache_that_was_never_written_is_an_error(bundles: Bundles) -> None:
    with opened(bundles) as runtime:
        steps = HandSteps(runtime)
        steps.tokens[3] = [1, 2]
        with pytest.raises(StepFailed, match="nothing lies in cache 3, of which 2 KV slots are wanted"):
            runtime.run(steps.batch(1, (3, (4,))))


def test_caches_serve_one_sequence_after_the_other(bundles: Bundles) -> None:
    """The memory is what sequences use at once, not what there were."""
    with opened(bundles, "fused 3") as runtime:
        steps = HandSteps(runtime)
        for _ in range(5):
            for number in range(4):
                steps.run(8, (number, PROMPT[:4]))
            runtime.blocks.free(range(4))
            steps.tokens.clear()
        assert next(runtime._caches._serials) <= 6  # four, the blank one, and one for a prompt that is not kept yet


def test_only_the_last_rows_give_logits(bundles: Bundles) -> None:
    with opened(bundles) as runtime:
        steps = HandSteps(runtime)
        assert steps.run(8, (0, PROMPT[:4])).shape == (1, 384)
        assert steps.run(8, (1, PROMPT[:4]), (0, (4,))).shape == (2, 384)
        assert {rows: graph.logits.shape for rows, graph in runtime._graphs.items()} == {
            1: (1, 1, 384),
            8: (1, 2, 384),
            16: (1, 2, 384),
        }
