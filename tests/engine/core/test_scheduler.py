"""The scheduler against hand-computed sequences; the answer depends on every mask, column and position."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle.variant import ShapeTable, StepShape, pin
from engine.core.plan import StepResult
from engine.core.speculation import PromptLookup
from engine.request import FinishReason
from tests.engine.fake_runtime import visible
from tests.engine.worker.simulation import VOCAB, RightGuesses, by_hand, fixed, free, fused, segmented, simulate

FIXED = fixed((1, 127), (8, 127), (32, 127))
SAME_PAST = fixed((1, 256), (4, 256), (16, 256), (1, 64), (4, 64), (16, 64))


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((i * 7 + salt * 13 + 3) % 50 for i in range(length))


@pytest.mark.parametrize(
    "shapes",
    [FIXED, SAME_PAST, free(32, 256), fixed((1, 127), prefill=((8, 120), (32, 96))), segmented(32, 256)],
    ids=["concat", "buckets", "free", "prefill without logits", "segmented"],
)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 64, 100])
def test_one_sequence_is_its_definition(shapes: ShapeTable, length: int) -> None:
    world = simulate(shapes)
    world.submit("a", prompt(length), 20)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(length), 20, limit=world.scheduler.rules.capacity.tokens_per_sequence)


def test_decodes_and_prefill_share_a_step() -> None:
    world = simulate(fixed((16, 240)))
    for index in range(4):
        world.submit(f"d{index}", prompt(3, index), 30)
    world.step()
    world.submit("late", prompt(40, 9), 5)
    plan_rows = []
    for _ in range(4):
        world.step()
        plan_rows.append(int((world.runtime.steps[-1].input_ids.shape)[0]))
    fused = world.runtime.steps[-2]
    assert fused.starts[0] < fused.starts[-1]
    assert len(fused.starts) == 5  # one prefill chunk and four decodes in one step
    assert fused.starts[1:] == (12, 13, 14, 15)  # decodes on the last rows, prefill right-aligned before them
    world.run()
    assert world.outputs["late"] == by_hand(prompt(40, 9), 5)


def test_a_step_of_decodes_only() -> None:
    shapes = fixed((4, 252), (16, 240))
    world = simulate(shapes, costs={StepShape(4, 252): 40.0, StepShape(16, 240): 48.0})
    for index in range(4):
        world.submit(f"d{index}", prompt(3, index), 5)
    while any(not tokens for tokens in world.outputs.values()):
        world.step()
    before = world.loop.stats()
    world.step()
    batch, after = world.runtime.steps[-1], world.loop.stats()
    assert (batch.shape.rows, batch.starts, batch.logit_rows.tolist()) == (4, (0, 1, 2, 3), [0, 1, 2, 3])
    assert (after.decode_rows - before.decode_rows, after.prefill_rows - before.prefill_rows) == (4, 0)
    world.run()
    assert all(world.outputs[f"d{index}"] == by_hand(prompt(3, index), 5) for index in range(4))


def test_prefill_is_chunked_to_the_row_budget() -> None:
    world = simulate(fixed((64, 448)))
    world.submit("a", prompt(200), 2)
    world.step()
    assert [len(world.runtime.steps[-1].logit_rows)] == [0]
    world.run()
    # 200 = 64 + 64 + 64 + 8, then one decode step: five in all, and only the last chunk asks for logits.
    assert [len(batch.logit_rows) for batch in world.runtime.steps] == [0, 0, 0, 1, 1]


KV_ONLY = fixed((1, 255), prefill=((16, 240),))


def test_all_of_a_prompt_but_its_last_token_needs_no_logits() -> None:
    world = simulate(KV_ONLY)
    world.submit("a", prompt(40), 3)
    world.run()
    assert [batch.shape.rows for batch in world.runtime.steps] == [16, 16, 16, 1, 1, 1]  # 16 + 16 + 7, then the last
    assert [len(batch.logit_rows) for batch in world.runtime.steps] == [0, 0, 0, 1, 1, 1]
    assert world.outputs["a"] == by_hand(prompt(40), 3)


@pytest.mark.parametrize("shapes", [KV_ONLY, fixed((1, 255), (4, 252), prefill=((16, 240),))])
def test_steps_without_logits_take_turns_with_decodes(shapes: ShapeTable) -> None:
    world = simulate(shapes)
    world.submit("chat", prompt(1), 40)
    world.step()
    world.submit("late", prompt(60, 3), 5)
    world.submit("last", prompt(50, 4), 5)
    rows = []
    for _ in range(6):
        world.step()
        rows.append(world.runtime.steps[-1].shape.rows)
    assert rows.count(16) == 3 and 16 not in (rows[0], rows[2], rows[4])
    world.run()
    assert world.outputs["chat"] == by_hand(prompt(1), 40)
    assert world.outputs["late"] == by_hand(prompt(60, 3), 5)
    assert world.outputs["last"] == by_hand(prompt(50, 4), 5)


def test_scored_prompts_use_no_step_without_logits() -> None:
    world = simulate(KV_ONLY)
    world.submit("scored", prompt(20), 2, prompt_logprobs=0)
    world.run()
    assert {batch.shape.rows for batch in world.runtime.steps} == {1}
    assert len(world.prompt_logprobs["scored"]) == 19


def test_smallest_fitting_variant_by_cost() -> None:
    shapes = fixed((1, 128), (8, 128), (64, 128))
    costs = {StepShape(1, 128): 1.0, StepShape(8, 128): 2.0, StepShape(64, 128): 8.0}
    world = simulate(shapes, costs=costs, max_gap_ms=100.0)
    for length, rows in ((50, 64), (5, 8), (1, 1)):
        world.submit(f"p{length}", prompt(length, length), 1)
        world.step()
        assert world.runtime.steps[-1].shape.rows == rows


def test_gap_bound_limits_prefill_while_somebody_decodes() -> None:
    shapes = fixed((8, 500), (128, 500))
    costs = {StepShape(8, 500): 10.0, StepShape(128, 500): 300.0}
    world = simulate(shapes, costs=costs, max_gap_ms=100.0)
    world.submit("chat", prompt(4), 40)
    world.step()
    world.submit("long", prompt(300, 1), 1)
    while "long" not in world.finishes:
        world.step()
        assert world.runtime.steps[-1].shape.rows == 8
    world.run()
    assert world.outputs["chat"] == by_hand(prompt(4), 40)


def test_decodes_rotate_and_prefill_is_not_starved() -> None:
    world = simulate(fixed((4, 500)), max_running=64)
    for index in range(12):
        world.submit(f"s{index}", prompt(2, index), 40)
    steps = 0
    while not all(world.outputs.values()):
        world.step()
        steps += 1
    assert steps <= 2 * 12 * 2  # a step in two has room for prefill, even while decodes could fill every row
    before = {name: len(tokens) for name, tokens in world.outputs.items()}
    for _ in range(9):
        world.step()
    gained = {len(tokens) - before[name] for name, tokens in world.outputs.items()}
    assert gained == {3}  # 12 sequences, 4 rows: each is served every third step
    world.run()
    assert all(world.outputs[f"s{i}"] == by_hand(prompt(2, i), 40) for i in range(12))


def test_row_of_one_alternates_between_prefill_and_decode() -> None:
    world = simulate(fixed((1, 255)))
    world.submit("chat", prompt(1), 60)
    world.step()
    world.submit("late", prompt(20, 3), 5)
    world.run()
    assert world.outputs["chat"] == by_hand(prompt(1), 60)
    assert world.outputs["late"] == by_hand(prompt(20, 3), 5)


def test_columns_run_out_and_the_youngest_gives_way() -> None:
    world = simulate(fixed((8, 96)), prefix_cache=False)
    for index in range(4):
        world.submit(f"s{index}", prompt(14, index), 30)
    world.run()
    assert world.scheduler.counters.preemptions > 0
    for index in range(4):
        assert world.outputs[f"s{index}"] == by_hand(prompt(14, index), 30)


def test_columns_are_kept_free_for_what_running_answers_still_expect() -> None:
    """Ten blocks; each request takes one at first and three in the end."""
    found = {}
    for reserve_tokens in (0, 40):
        world = simulate(fixed((8, 160)), prefix_cache=False, reserve_tokens=reserve_tokens)
        for index in range(6):
            world.submit(f"s{index}", prompt(8, index), 40)
        world.step()
        found[reserve_tokens] = world.scheduler.running
        world.run()
        assert (world.scheduler.counters.preemptions > 0) is (reserve_tokens == 0)
        assert all(world.outputs[f"s{index}"] == by_hand(prompt(8, index), 40) for index in range(6))
    assert found == {0: 5, 40: 3}


def test_what_is_expected_never_keeps_a_lone_request_out() -> None:
    world = simulate(fixed((8, 64)), reserve_tokens=1000)
    for index in range(3):
        world.submit(f"s{index}", prompt(30, index), 30)
    world.run()
    assert world.scheduler.counters.preemptions == 0
    assert all(world.outputs[f"s{index}"] == by_hand(prompt(30, index), 30) for index in range(3))


STOCK = fixed((1, 255), (64, 192))  # one context, as AI Hub exports it: 15 blocks, of which wide steps span 12


@pytest.mark.parametrize("offload_blocks", [0, 64])
def test_sharing_a_pool_never_leaves_steps_of_one_row(offload_blocks: int) -> None:
    world = simulate(STOCK, offload_blocks=offload_blocks)
    for name in ("a", "b"):
        world.submit(name, prompt(40, ord(name)), 80)
    while world.scheduler.has_work:
        both = world.scheduler.running == 2
        world.step()
        assert world.runtime.steps[-1].shape.rows == 64 or not both or world.scheduler.running < 2
    assert world.scheduler.counters.preemptions == 1  # 16 blocks wanted, 12 to be shared
    assert all(world.outputs[name] == by_hand(prompt(40, ord(name)), 80) for name in ("a", "b"))


def test_alone_a_sequence_has_the_whole_pool_and_newcomers_wait_for_its_end() -> None:
    world = simulate(STOCK)
    world.submit("long", prompt(190), 50)
    for _ in range(10):
        world.step()
    assert len(world.outputs["long"]) > 3  # beyond 192 columns
    world.submit("late", prompt(5, 1), 3)
    while "long" not in world.finishes:
        world.step()
        assert world.outputs["late"] == []
    world.run()
    assert world.outputs["long"] == by_hand(prompt(190), 50)
    assert world.outputs["late"] == by_hand(prompt(5, 1), 3)


def test_a_kept_prefix_beyond_what_is_shared_is_left_out() -> None:
    world = simulate(STOCK)
    world.submit("long", prompt(230), 1)
    world.run()
    world.submit("short", prompt(5, 1), 60)
    world.step()
    world.submit("again", prompt(230), 1)
    world.run()
    assert world.finishes.keys() == {"long", "short", "again"}
    assert world.outputs["again"] == by_hand(prompt(230), 1)


def test_a_request_that_can_never_fit_is_refused_with_numbers() -> None:
    world = simulate(fixed((8, 64)))
    with pytest.raises(ValueError, match="65 tokens leave no room in a context of 65"):
        world.submit("big", prompt(65), 1)


def test_generation_ends_at_the_edge_of_the_context() -> None:
    world = simulate(fixed((8, 64)))
    world.submit("edge", prompt(60), 100)
    world.run()
    assert world.finishes["edge"] is FinishReason.LENGTH
    assert len(world.outputs["edge"]) == 5  # 64 columns hold 64 tokens; the 65th is never cached
    assert world.outputs["edge"] == by_hand(prompt(60), 5)


def test_stop_token_on_the_first_token() -> None:
    first = by_hand(prompt(9), 1)
    world = simulate(fixed((8, 64)))
    world.submit("a", prompt(9), 10, stop_token_ids=(first[0],))
    world.run()
    assert world.outputs["a"] == first
    assert world.finishes["a"] is FinishReason.STOP


@pytest.mark.parametrize("place", [2, 5])
def test_the_first_of_several_end_tokens_ends_it_and_is_counted(place: int) -> None:
    """Whichever of them comes first, in the order of the answer and not of the list."""
    answer = by_hand(prompt(9), 12)
    stops = (answer[8], answer[place])
    expected = answer[: min(answer.index(stop) for stop in stops) + 1]
    world = simulate(fixed((8, 64)))
    world.submit("a", prompt(9), 12, stop_token_ids=stops)
    world.run()
    assert (world.outputs["a"], world.finishes["a"]) == (expected, FinishReason.STOP)
    assert len(expected) < len(answer)


def test_penalties_count_every_token_that_was_sampled() -> None:
    """One after the other: with -2 a step, a token is as likely as another only while nobody has sampled it."""
    world = simulate(fixed((8, 120)))
    world.submit("a", prompt(9), 30, presence_penalty=2.0, logit_bias=tuple((token, 9.5) for token in range(4)))
    world.run()
    # Every row has one logit of 10, the others 0; four of them are raised by 9.5, and each falls once by 2.
    seen: set[int] = set()
    expected: list[int] = []
    for _ in range(30):
        likeliest = by_hand((*prompt(9), *expected), 1)[0]
        scores = [10.0 * (token == likeliest) + 9.5 * (token < 4) - 2.0 * (token in seen) for token in range(VOCAB)]
        expected.append(max(range(VOCAB), key=lambda token: (scores[token], -token)))
        seen.add(expected[-1])
    assert world.outputs["a"] == expected
    assert expected != by_hand(prompt(9), 30)


@pytest.mark.parametrize("length", [62, 63, 64, 65, 66])
def test_a_sequence_moves_to_the_wider_context_when_its_tokens_no_longer_fit(length: int) -> None:
    """At the border and beside it: narrow while what a step adds fits, wide once the narrow past does not hold all."""
    world = simulate(SAME_PAST, costs={shape: shape.rows + shape.past / 8 for shape in SAME_PAST.fixed})
    world.submit("a", prompt(length), 5)
    cached = 0
    while world.scheduler.has_work:
        world.step()
        batch = world.runtime.steps[-1]
        added = batch.shape.rows - batch.starts[0]
        assert batch.shape.past in ({64} if cached + added <= 64 else {256} if cached > 64 else {64, 256})
        cached += added
    assert world.outputs["a"] == by_hand(prompt(length), 5)
    assert {batch.shape.past for batch in world.runtime.steps} == {64, 256}


def test_shared_prefix_is_computed_once_and_siblings_wait_for_it() -> None:
    world = simulate(fixed((32, 480)))
    shared = prompt(100)
    for index in range(6):
        world.submit(f"n{index}", shared, 8)
    world.run()
    assert all(world.outputs[f"n{i}"] == by_hand(shared, 8) for i in range(6))
    # 96 of the 100 prompt tokens fill whole blocks and are computed once for all six.
    computed = sum(1 for batch in world.runtime.steps for _ in batch.starts)
    assert world.scheduler.counters.prefix_hits == 5 * 96
    assert computed < 6 * 14


def test_prefix_survives_the_end_of_a_request() -> None:
    world = simulate(free(64, 512))
    world.submit("first", prompt(64), 4)
    world.run()
    world.submit("second", prompt(64), 4)
    world.run()
    assert world.outputs["second"] == world.outputs["first"] == by_hand(prompt(64), 4)
    assert world.scheduler.counters.prefix_hits == 48  # the last block holds the token that yields the logits


def test_a_prefix_is_shared_only_within_its_salt() -> None:
    world = simulate(free(64, 2048), offload_blocks=100)
    hits = []
    for number, salt in enumerate((b"anna", b"ben", b"", b"anna", b"ben", b"")):
        world.submit(f"r{number}", prompt(64), 4, cache_salt=salt)
        world.run()
        assert world.outputs[f"r{number}"] == by_hand(prompt(64), 4)
        hits.append(world.scheduler.counters.prefix_hits)
    assert hits == [0, 0, 0, 48, 96, 144]


def test_nobody_waits_for_a_prefix_of_another_salt() -> None:
    world = simulate(free(16, 2048))
    world.submit("anna", prompt(160), 4, cache_salt=b"anna")
    world.step()
    world.submit("ben", prompt(160), 4, cache_salt=b"ben")
    world.submit("anna too", prompt(160), 4, cache_salt=b"anna")
    world.step()
    assert (world.scheduler.running, world.scheduler.gauges().waiting) == (2, 1)
    world.run()
    assert world.scheduler.counters.prefix_hits == 144


def test_a_cached_prefix_goes_to_the_host_cache_and_comes_back() -> None:
    world = simulate(free(64, 2048), offload_blocks=100)
    world.submit("long", prompt(600, 5), 4)
    world.run()
    world.submit("short", prompt(10, 1), 20)
    world.run()
    assert world.runtime.steps[-1].shape.past == 64  # the 600 cached columns cost this step nothing
    world.submit("again", prompt(600, 5), 4)
    world.run()
    assert world.outputs["again"] == world.outputs["long"] == by_hand(prompt(600, 5), 4)
    assert world.scheduler.counters.prefix_hits == 592


def test_prompts_take_columns_as_they_go() -> None:
    """A step spans the columns up to the highest that is written: prompts that wait must not push decodes up."""
    world = simulate(free(16, 2048), prefix_cache=False)
    for index in range(8):
        world.submit(f"r{index}", prompt(160, index), 40)
    while not world.finishes:
        world.step()
    for batch in world.runtime.steps:
        seen = visible(batch)[:, : batch.shape.past].any(axis=0).sum()
        assert batch.shape.past < seen + 64 + 8 * 16  # rounding, and blocks that are not full yet
    assert world.scheduler._pool.reserved > 0
    world.run()
    assert world.outputs == {f"r{index}": by_hand(prompt(160, index), 40) for index in range(8)}


def test_a_more_urgent_request_does_not_wait_for_a_less_urgent_prefix() -> None:
    world = simulate(fixed((16, 496)), max_running=64)
    world.submit("low", prompt(200, 7), 1, priority=9)
    world.step()
    for index in range(4):
        world.submit(f"mid{index}", prompt(150, index), 1, priority=5)
    world.submit("high", prompt(200, 7), 1, priority=0)
    world.run()
    assert next(iter(world.finishes)) == "high"


@pytest.mark.parametrize("mode", [PromptLookup(longest=3, shortest=1), RightGuesses()])
def test_stop_inside_an_accepted_draft_keeps_the_books_straight(mode: PromptLookup) -> None:
    start = (1, 2, 3, 1, 2, 3, 1, 2)
    whole = by_hand(start, 120)
    for stop in set(whole[20:]):
        world = simulate(fixed((8, 256)), lookup=mode, lookup_rows=4)
        world.submit("a", start, 120, stop_token_ids=(stop,))
        world.run()
        assert world.outputs["a"] == by_hand(start, 120, (stop,))


def test_slow_machine_serves_all_decodes_and_still_prefills() -> None:
    costs = {StepShape(1, 64): 300.0, StepShape(8, 64): 600.0, StepShape(32, 64): 1200.0}
    world = simulate(free(64, 2048), costs=costs, max_gap_ms=250.0)
    for index in range(8):
        world.submit(f"d{index}", prompt(2, index), 60)
    while not all(world.outputs.values()):
        world.step()
    world.submit("late", prompt(300, 9), 1)
    before, steps = {name: len(tokens) for name, tokens in world.outputs.items()}, 0
    while "late" not in world.finishes:
        world.step()
        steps += 1
    assert steps < 40  # not one row a step
    gained = [len(world.outputs[name]) - before[name] for name in before if name != "late"]
    assert min(gained) >= steps  # every decode moves in every step


def test_abort_frees_rows_and_columns_before_the_next_step() -> None:
    world = simulate(fixed((8, 128)), prefix_cache=False)
    world.submit("gone", prompt(40), 50)
    world.submit("stays", prompt(5, 2), 6)
    world.step()
    pool = world.scheduler._pool
    assert (pool.reserved, pool.available()) == (2 + 1, 7)
    world.scheduler.abort("gone")
    assert world.scheduler.blocks.referenced == 0
    assert (pool.reserved, pool.available()) == (1, 8)
    world.run()
    assert world.outputs["stays"] == by_hand(prompt(5, 2), 6)
    assert world.scheduler.blocks.referenced == 0


def test_failed_step_loses_only_its_own_sequences() -> None:
    world = simulate(fixed((4, 128)), max_running=1)
    world.submit("unlucky", prompt(3), 5)
    world.submit("next", prompt(4, 1), 5)
    world.runtime.fail_at = 1
    world.run()
    assert world.failures == {"unlucky": "the fake runtime was told to fail"}
    assert world.outputs["next"] == by_hand(prompt(4, 1), 5)


def test_emitted_tokens_are_prefilled_not_repeated() -> None:
    whole = by_hand(prompt(10), 20)
    world = simulate(fixed((8, 128)))
    world.submit("resumed", prompt(10), 20, emitted=tuple(whole[:7]))
    world.run()
    assert world.outputs["resumed"] == whole


def test_lookup_drafts_only_into_padding_and_changes_nothing() -> None:
    def tokens(mode_rows: int) -> tuple[list[int], int]:
        world = simulate(fixed((8, 256)), lookup=PromptLookup(longest=3, shortest=1), lookup_rows=mode_rows)
        world.submit("a", (1, 2, 3, 1, 2, 3, 1, 2), 120)
        world.run()
        return world.outputs["a"], world.scheduler.counters.drafted_rows

    plain, none = tokens(0)
    guessed, drafted = tokens(4)
    assert guessed == plain == by_hand((1, 2, 3, 1, 2, 3, 1, 2), 120)
    assert none == 0 < drafted


REQUEST = st.tuples(
    st.integers(0, 3),  # salt: equal salts share prefixes
    st.integers(1, 70),  # prompt length
    st.integers(1, 25),  # max tokens
    st.integers(0, 12),  # step of arrival
    st.one_of(st.none(), st.integers(0, 30)),  # step of cancel
    st.integers(0, 2),  # priority
    st.sampled_from([(), (3,), (10, 11, 26, 27), (0, 5, 7, 12, 20, 31, 44)]),  # stop tokens
)
WORLDS = {
    "concat": lambda: simulate(FIXED, max_running=5),
    "tight": lambda: simulate(fixed((4, 112)), max_running=6),
    "foreign": lambda: simulate(fixed((1, 127), (32, 96)), columns=127),
    "buckets": lambda: simulate(SAME_PAST),
    "prefill without logits": lambda: simulate(fixed((1, 127), (4, 124), prefill=((8, 120), (32, 96))), max_running=5),
    "free": lambda: simulate(free(24, 256)),
    "segmented": lambda: simulate(segmented(24, 256)),
    "segmented, one shape": lambda: simulate(pin(segmented(64, 256), 32)),
    "segmented, guesses over bases": lambda: simulate(segmented(24, 256), lookup=RightGuesses(), lookup_rows=3),
    "segmented, host cache": lambda: simulate(segmented(24, 256), columns=128, offload_blocks=6),
    "segmented, guesses": lambda: simulate(pin(segmented(64, 256), 32), lookup=RightGuesses(), lookup_rows=3),
    "recurrent": lambda: simulate(segmented(24, 512), is_recurrent=True, state_snapshots=6),
    "recurrent, few columns": lambda: simulate(segmented(24, 256), columns=128, is_recurrent=True, state_snapshots=4),
    "recurrent, one snapshot": lambda: simulate(segmented(7, 512), is_recurrent=True, state_snapshots=1),
    "recurrent, no snapshot": lambda: simulate(segmented(24, 256), columns=112, is_recurrent=True, state_snapshots=0),
    "recurrent, one shape": lambda: simulate(pin(segmented(64, 256), 32), is_recurrent=True, state_snapshots=6),
    "windows": lambda: simulate(segmented(24, 256), window=20, window_blocks=12),
    "windows, few blocks": lambda: simulate(segmented(16, 128), window=33, window_blocks=5),
    "windows, nothing to spare": lambda: simulate(segmented(5, 256), window=16, window_blocks=3),
    "windows, guesses": lambda: simulate(
        segmented(24, 256), window=7, window_blocks=6, lookup=RightGuesses(), lookup_rows=3
    ),
    "windows, no prefix": lambda: simulate(segmented(24, 128), window=20, window_blocks=6, prefix_cache=False),
    "window of all layers": lambda: simulate(fixed((8, 120)), window=20),
    "window of all layers, tight": lambda: simulate(fixed((4, 64), (1, 67)), window=33, max_running=6),
    "window of all layers, free": lambda: simulate(free(24, 128), window=16, reserve_tokens=12),
    "window of all layers, guesses": lambda: simulate(
        fixed((16, 112)), window=7, lookup=RightGuesses(7), lookup_rows=3
    ),
    "window of all layers, no prefix": lambda: simulate(fixed((8, 64)), window=20, prefix_cache=False),
    "window of all layers, host cache": lambda: simulate(fixed((8, 88), (24, 72)), window=20, offload_blocks=12),
    "window of all layers, few copies": lambda: simulate(fixed((8, 88)), window=20, offload_blocks=6),
    "host cache": lambda: simulate(free(24, 2048), offload_blocks=6),
    "host cache and buckets": lambda: simulate(SAME_PAST, offload_blocks=40),
    "stock": lambda: simulate(fixed((1, 127), (8, 120), (32, 96)), offload_blocks=10),
    "reserved": lambda: simulate(fixed((8, 112)), reserve_tokens=12),
    "no prefix": lambda: simulate(fixed((8, 112)), prefix_cache=False),
    "right guesses": lambda: simulate(fixed((16, 112)), lookup=RightGuesses(), lookup_rows=3),
    "lookup": lambda: simulate(fixed((16, 112)), lookup=PromptLookup(3, 1), lookup_rows=3),
    "one slot": lambda: simulate(fused(1, 8, 16), columns=5 * 128, block=128, prefix_cache=False),
    "three slots": lambda: simulate(fused(3, 8, 16), columns=5 * 128, block=128, prefix_cache=False, max_running=4),
    "three slots, one shape": lambda: simulate(pin(fused(3, 8), 32), columns=640, block=128, prefix_cache=False),
    "slow": lambda: simulate(free(24, 256), costs={StepShape(1, 64): 300.0, StepShape(24, 64): 900.0}),
}


@pytest.mark.parametrize("world_name", WORLDS)
@given(requests=st.lists(REQUEST, min_size=1, max_size=9))
@settings(max_examples=15, deadline=None)
def test_random_arrivals_cancels_and_preemptions(world_name: str, requests: list[tuple[Any, ...]]) -> None:
    check_random(world_name, requests)


def check_random(world_name: str, requests: list[tuple[Any, ...]]) -> None:
    """Whatever arrives and leaves, each gets the tokens of its definition."""
    world = WORLDS[world_name]()
    limit = world.scheduler.rules.capacity.tokens_per_sequence
    step = 0
    while step <= 31 or world.scheduler.has_work:
        for index, (salt, length, budget, arrival, cancel, priority, stops) in enumerate(requests):
            if arrival == step:
                world.submit(f"r{index}", prompt(length, salt), budget, priority=priority, stop_token_ids=stops)
            if cancel == step:
                world.scheduler.abort(f"r{index}")
        world.step()
        step += 1
        assert step < 3000
    for index, (salt, length, budget, arrival, cancel, _, stops) in enumerate(requests):
        whole = by_hand(prompt(length, salt), budget, stops, limit, world.scheduler._pool.sight.window)
        got = world.outputs[f"r{index}"]
        assert got == whole[: len(got)]
        if cancel is None or cancel < arrival:
            assert got == whole


def test_a_sequence_that_ended_since_the_plan_gets_no_update_and_its_id_may_be_used_again() -> None:
    world = simulate(fixed((8, 112)))
    for name in ("a", "b"):
        world.submit(name, (1, 2), 5)
    plan = world.scheduler.plan()
    assert plan is not None and [segment.sequence.id for segment in plan.segments] == ["a", "b"]
    world.scheduler.abort("a")
    world.submit("a", (3, 4, 5), 5)
    updates = world.scheduler.commit(plan, StepResult({"a": (7,), "b": (8,)}))
    assert [(update.sequence.id, update.new_tokens) for update in updates] == [("b", (8,))]
    again = world.scheduler.find("a")
    assert again is not None and again.tokens == [3, 4, 5] and again.computed == 0
    assert list(world.scheduler.violations()) == []


def test_a_failed_step_ends_only_those_it_carried_and_that_still_ran() -> None:
    world = simulate(fixed((2, 118)))
    for name in ("a", "b", "c"):
        world.submit(name, (1,), 5)
    plan = world.scheduler.plan()
    assert plan is not None
    world.scheduler.drop(plan.segments[0].sequence)
    assert [sequence.id for sequence in world.scheduler.fail(plan)] == ["b"]
    assert [sequence.id for sequence in world.scheduler.sequences()] == ["c"]


def test_without_a_prefix_cache_no_block_outlives_its_sequence() -> None:
    world = simulate(fixed((32, 480)), prefix_cache=False)
    world.submit("a", prompt(100), 4)
    world.run()
    assert world.scheduler.blocks.high_water(with_cached=True) == 0
    assert world.scheduler.counters.prefix_queries == 104 - 4


def test_a_stop_token_ends_nothing_before_min_tokens() -> None:
    world = simulate(fixed((8, 112)))
    world.submit("a", (1,), 9, stop_token_ids=(7,), min_tokens=2)
    for taken in (1, 2, 3):
        plan = world.scheduler.plan()
        assert plan is not None
        (update,) = world.scheduler.commit(plan, StepResult({"a": (7,)}))
        assert (update.sequence.generated, update.sequence.is_finished) == (taken, taken == 3)


@pytest.mark.parametrize("mode", [PromptLookup(longest=3, shortest=1), RightGuesses()])
def test_guesses_are_counted_for_their_request(mode: PromptLookup) -> None:
    world = simulate(fixed((8, 256)), lookup=mode, lookup_rows=4)
    world.submit("a", (1, 2, 3, 1, 2, 3, 1, 2), 120)
    (sequence,) = world.scheduler.sequences()
    world.run()
    counters = world.scheduler.counters
    assert sequence.drafted == counters.drafted_rows > 0
    assert sequence.accepted == counters.accepted_rows == (120 - len(world.runtime.steps))
    assert (sequence.accepted > 0) is isinstance(mode, RightGuesses)
    assert (sequence.steps, sequence.generated) == (len(world.runtime.steps), 120)


def test_accepted_guesses_are_the_sequence_by_definition_and_save_steps() -> None:
    world = simulate(fixed((8, 256)), lookup=RightGuesses(), lookup_rows=4)
    world.submit("a", prompt(9), 121)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(9), 121)
    assert len(world.runtime.steps) == 2 + 120 // 5  # two of the prompt, then a token and four guesses a step


@pytest.mark.parametrize("stop", range(50))
def test_a_stop_inside_guesses_that_were_right_ends_there(stop: int) -> None:
    """Then another one of the same prompt and beginning, from the blocks that were kept."""
    whole = by_hand(prompt(40), 60, (stop,))
    world = simulate(fixed((8, 256)), lookup=RightGuesses(), lookup_rows=4)
    for name in ("a", "b"):
        world.submit(name, prompt(40), 60, stop_token_ids=(stop,))
        world.run()
        assert world.outputs[name] == whole
        assert world.finishes[name] is (FinishReason.STOP if whole[-1] == stop else FinishReason.LENGTH)
    again = (*prompt(40), *whole)
    world.submit("again", again, 20)
    world.run()
    assert world.outputs["again"] == by_hand(again, 20)


def test_a_preempted_sequence_says_so_and_asks_the_prefix_cache_once() -> None:
    world = simulate(fixed((8, 96)))
    for index in range(4):
        world.submit(f"s{index}", prompt(14, index), 30)
    sequences = world.scheduler.sequences()
    world.run()
    counters = world.scheduler.counters
    assert sum(sequence.preemptions for sequence in sequences) == counters.preemptions > 0
    assert counters.prefix_queries == 4 * 14
    assert all(sequence.cached_tokens == 0 for sequence in sequences)
