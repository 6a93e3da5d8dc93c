"""Sequences denoised block by block over the fake runtime: what comes out is the definition, whatever shares steps."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.bundle.variant import ShapeTable
from engine.request import Denoising, FinishReason, Unmasking
from tests.engine.core.blocks_by_hand import ByHand, denoise
from tests.engine.fake_runtime import expected_prediction, visible
from tests.engine.worker.simulation import VOCAB, RightGuesses, Simulation, by_hand, fixed, free, segmented, simulate

MASK = VOCAB - 1
FOUR = Denoising(4, MASK, 4)
RULES = {
    "dynamic": replace(FOUR, confidence_threshold=0.8),
    "static in two": replace(FOUR, steps=2, unmasking=Unmasking.STATIC_CONFIDENCE),
    "static in three": replace(FOUR, steps=3, unmasking=Unmasking.STATIC_CONFIDENCE),
    "sequential": replace(FOUR, unmasking=Unmasking.SEQUENTIAL),
    "entropy": replace(FOUR, unmasking=Unmasking.ENTROPY_BOUND, entropy_bound=1.0),
}
SHAPES: dict[str, ShapeTable] = {
    "free": free(64, 512),
    "segmented": segmented(64, 512),
    "fixed": fixed((4, 124), (16, 112)),
    "one block at a time": fixed((4, 124)),
    "prefill without logits": fixed((8, 120), prefill=((32, 96),)),
}


def fake_logits(tokens: Sequence[int], masked: Sequence[int]) -> NDArray[np.float64]:
    """What the fake runtime says of masked positions."""
    found = np.zeros((len(masked), VOCAB))
    for row, place in enumerate(masked):
        token, height = expected_prediction(list(enumerate(tokens)), place, VOCAB)
        found[row, token] = height
    return found


def expected(prompt: Sequence[int], settings: Denoising, max_tokens: int, **more: object) -> ByHand:
    return denoise(fake_logits, prompt, settings, max_tokens, **more)  # type: ignore[arg-type]


def world_of(shapes: ShapeTable, unit: int = 4, **options: object) -> Simulation:
    return simulate(replace(shapes, unit=unit), **options)  # type: ignore[arg-type]


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(Random(length * 7 + seed).randrange(VOCAB - 1) for _ in range(length))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shapes", SHAPES)
def test_tokens_are_those_of_the_definition(shapes: str, rule: str) -> None:
    """Alone and beside others; prompts that end at a border, before it and behind it."""
    lengths = (1, 3, 4, 5, 8, 18, 31, 40)
    together = world_of(SHAPES[shapes])
    for length in lengths:
        together.submit(f"s{length}", prompt_of(length), 13, denoising=RULES[rule])
    together.run()
    assert together.failures == {}
    for length in lengths:
        by_definition = expected(prompt_of(length), RULES[rule], 13).tokens
        assert together.outputs[f"s{length}"] == by_definition
        alone = world_of(SHAPES[shapes])
        alone.submit("a", prompt_of(length), 13, denoising=RULES[rule])
        alone.run()
        assert alone.outputs["a"] == by_definition
        assert MASK not in by_definition


def test_the_rules_differ_and_the_definition_says_in_how_many_steps() -> None:
    found = {rule: expected(prompt_of(18), settings, 40) for rule, settings in RULES.items()}
    assert len({tuple(result.tokens) for result in found.values()}) >= 4
    assert set(found["static in two"].steps[1:]) == {2}
    assert set(found["static in three"].steps[1:]) == {3}
    assert set(found["sequential"].steps[1:]) == {4}
    assert {1, 4} < set(found["dynamic"].steps) | {4}


@pytest.mark.parametrize("rule", RULES)
def test_a_block_takes_its_steps_and_the_last_shares_one_with_the_next(rule: str) -> None:
    """Prefill, denoise, advance: the step that keeps a block begins the next one, so no step is for keeping alone."""
    world = world_of(free(64, 512))
    prompt = prompt_of(16)
    world.submit("a", prompt, 24, denoising=RULES[rule])
    steps = world.run()
    assert steps == sum(expected(prompt, RULES[rule], 24).steps)
    rows = [sum(part.count for part in batch.segments) for batch in world.runtime.steps]
    assert rows[0] == 20  # the prompt, and the first block of the answer
    assert set(rows[1:]) == {4, 8}
    assert rows.count(8) == 5


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.8, 0.99, 1.0])
def test_steps_go_with_the_threshold(threshold: float) -> None:
    settings = replace(FOUR, confidence_threshold=threshold)
    world = world_of(free(64, 512))
    world.submit("a", prompt_of(16), 40, denoising=settings)
    steps = world.run()
    by_definition = expected(prompt_of(16), settings, 40)
    assert (world.outputs["a"], steps) == (by_definition.tokens, sum(by_definition.steps))
    assert {0.0: steps == 10, 1.0: steps == 40}.get(threshold, 10 < steps < 40)


def test_a_block_sees_itself_both_ways_and_what_lies_before() -> None:
    """Golden: rows of the step that keeps positions 4 to 7 and denoises 8 to 11, over four kept columns."""
    world = world_of(fixed((8, 120)))
    world.submit("a", prompt_of(4), 9, denoising=replace(FOUR, steps=1, unmasking=Unmasking.SEQUENTIAL))
    world.run()
    second = world.runtime.steps[1]
    assert second.positions.tolist() == list(range(4, 12))
    assert second.input_ids.tolist() == [*world.outputs["a"][:4], MASK, MASK, MASK, MASK]
    assert second.logit_rows.tolist() == [4, 5, 6, 7]
    shown = visible(second).astype(int)
    assert shown[:, :4].tolist() == [[1] * 4] * 8 and not shown[:, 4:120].any()
    assert shown[:4, 120:].tolist() == [[1, 1, 1, 1, 0, 0, 0, 0]] * 4
    assert shown[4:, 120:].tolist() == [[1] * 8] * 4


def test_only_masked_rows_ask_for_logits() -> None:
    world = world_of(free(64, 512))
    world.submit("a", prompt_of(6), 6, denoising=RULES["sequential"])
    world.run()
    first, second = world.runtime.steps[:2]
    assert (first.shape.rows, first.logit_rows.tolist()) == (8, [6, 7])
    assert (second.shape.rows, second.logit_rows.tolist()) == (4, [3])
    assert second.input_ids[2] == world.outputs["a"][0] and second.input_ids[3] == MASK


def test_nothing_of_a_block_is_kept_until_it_is_settled() -> None:
    """And then its own columns alone, of clean tokens: the fake pool holds what was kept, poison elsewhere."""
    world = world_of(fixed((8, 120)))
    world.submit("a", prompt_of(8), 20, denoising=RULES["sequential"])
    kept: list[int] = []
    while world.scheduler.has_work:
        before = world.runtime._pool.copy()
        world.step()
        for sequence in world.scheduler.sequences():
            columns = [sequence.blocks[i // 16] * 16 + i % 16 for i in range(sequence.computed)]
            held = world.runtime._pool[columns]
            assert held.tolist() == [list(pair) for pair in enumerate(sequence.tokens[: sequence.computed])]
            changed = (before != world.runtime._pool).any(axis=1).sum()
            assert changed == sequence.computed - (kept[-1] if kept else 0)
            kept.append(sequence.computed)
    # One step for the prompt, four for each block; the last of them ends the sequence.
    assert Counter(kept) == {8: 5, 12: 4, 16: 4, 20: 4, 24: 3}


def test_sequences_that_denoise_and_sequences_that_decode_share_steps() -> None:
    """One packer: prefill, denoising, keeping and single decodes beside each other, each with its own definition."""
    world = world_of(fixed((4, 124), (32, 96)))
    for number in range(3):
        world.submit(f"block{number}", prompt_of(21 + number), 17, denoising=RULES["dynamic"])
        world.submit(f"token{number}", prompt_of(9 + number), 17)
    world.run()
    for number in range(3):
        assert world.outputs[f"block{number}"] == expected(prompt_of(21 + number), RULES["dynamic"], 17).tokens
        assert world.outputs[f"token{number}"] == by_hand(prompt_of(9 + number), 17)
    mixed = [{part.block_rows for part in batch.segments} for batch in world.runtime.steps]
    assert mixed.count({1, 4}) > 5


def test_an_answer_ends_at_the_first_stop_token_of_a_block() -> None:
    settings = RULES["static in two"]
    whole = expected(prompt_of(10), settings, 30).tokens
    for stop in sorted(set(whole)):
        world = world_of(free(64, 512))
        world.submit("a", prompt_of(10), 30, denoising=settings, stop_token_ids=(stop,))
        world.run()
        assert world.outputs["a"] == whole[: whole.index(stop) + 1]
        assert world.finishes["a"] is FinishReason.STOP


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_max_tokens_cut_inside_a_block(max_tokens: int) -> None:
    world = world_of(free(64, 512))
    world.submit("a", prompt_of(10), max_tokens, denoising=RULES["entropy"])
    world.run()
    assert world.outputs["a"] == expected(prompt_of(10), RULES["entropy"], 20).tokens[:max_tokens]
    assert world.finishes["a"] is FinishReason.LENGTH


def test_an_end_that_is_settled_with_all_before_it_waits_for_no_other_token() -> None:
    world = world_of(free(64, 512))
    world.submit("a", prompt_of(8), 1, denoising=RULES["sequential"])
    assert world.run() == 1
    whole = expected(prompt_of(8), RULES["sequential"], 8).tokens
    world.submit("b", prompt_of(8), 8, denoising=RULES["sequential"], stop_token_ids=(whole[1],))
    assert world.run() == 2
    assert world.outputs["b"] == whole[: whole.index(whole[1]) + 1]


def test_stop_tokens_are_not_chosen_before_min_tokens() -> None:
    stops = tuple(range(40))
    world = world_of(free(64, 512))
    world.submit("a", prompt_of(8), 20, denoising=RULES["dynamic"], stop_token_ids=stops, min_tokens=6)
    world.run()
    tokens = world.outputs["a"]
    assert len(tokens) >= 7 and all(token not in stops for token in tokens[:6])
    assert tokens[-1] in stops or len(tokens) == 20


@pytest.mark.parametrize("context", range(17, 26))
def test_answers_end_at_the_edge_of_the_context(context: int) -> None:
    world = world_of(free(64, 512), max_context=context)
    world.submit("a", prompt_of(10), 100, denoising=RULES["dynamic"])
    world.run()
    assert world.outputs["a"] == expected(prompt_of(10), RULES["dynamic"], 100, limit=context).tokens
    assert world.finishes["a"] is FinishReason.LENGTH


def test_tokens_come_block_by_block_in_order() -> None:
    world = world_of(free(64, 512))
    world.submit("a", prompt_of(6), 22, denoising=RULES["static in two"])
    sizes = []
    while world.scheduler.has_work:
        before = len(world.outputs["a"])
        world.step()
        sizes.append(len(world.outputs["a"]) - before)
    assert [size for size in sizes if size] == [2, 4, 4, 4, 4, 4]


def test_what_an_earlier_worker_delivered_is_prompt() -> None:
    whole = expected(prompt_of(6), RULES["dynamic"], 30).tokens
    for delivered in (0, 2, 6, 10, 26):
        world = world_of(free(64, 512))
        world.submit("a", prompt_of(6), 30, denoising=RULES["dynamic"], emitted=tuple(whole[:delivered]))
        world.run()
        assert world.outputs["a"] == whole


def test_columns_run_out_and_blocks_go_on_where_they_were() -> None:
    world = world_of(fixed((16, 64)))
    for number in range(3):
        world.submit(f"s{number}", prompt_of(17, number), 30, denoising=RULES["sequential"])
    world.run()
    assert world.scheduler.counters.preemptions > 0
    for number in range(3):
        assert world.outputs[f"s{number}"] == expected(prompt_of(17, number), RULES["sequential"], 30).tokens


@pytest.mark.parametrize("block_length", [4, 12, 16, 32])
def test_prefixes_are_shared_up_to_the_end_of_a_block(block_length: int) -> None:
    """Keys of a block depend on all of it: two prompts that part inside one share what lies before it."""
    settings = Denoising(block_length, MASK, 3, Unmasking.STATIC_CONFIDENCE)
    world = world_of(free(128, 1024), block_length)
    first = prompt_of(150)
    others = [(*first[:cut], MASK - 1, *first[cut + 1 :]) for cut in (40, 100, 149)]
    for number, prompt in enumerate((first, *others, first)):
        world.submit(f"s{number}", prompt, 40, denoising=settings)
        world.run()
        assert world.outputs[f"s{number}"] == expected(prompt, settings, 40).tokens
    run = {4: 16, 12: 48, 16: 16, 32: 32}[block_length]
    assert [world.cached[f"s{number}"] for number in range(1, 5)] == [cut // run * run for cut in (40, 100, 149, 150)]


def test_of_a_block_that_was_forgotten_in_part_nothing_is_shared() -> None:
    settings = Denoising(32, MASK, 3, Unmasking.STATIC_CONFIDENCE)
    world = world_of(free(128, 1024), 32)
    for number in range(2):
        world.submit(f"s{number}", prompt_of(150), 40, denoising=settings)
        world.run()
        assert world.outputs[f"s{number}"] == expected(prompt_of(150), settings, 40).tokens
        world.scheduler.blocks.trim(7 * 16)
    assert world.cached == {"s0": 0, "s1": 6 * 16}


def test_a_prefix_of_a_sequence_that_decodes_is_not_that_of_one_that_denoises() -> None:
    world = world_of(free(64, 512))
    for number, denoising in enumerate((None, FOUR, None, FOUR)):
        world.submit(f"s{number}", prompt_of(40), 8, denoising=denoising)
        world.run()
    assert [world.cached[f"s{number}"] for number in range(4)] == [0, 0, 32, 32]
    assert world.outputs["s0"] == world.outputs["s2"] == by_hand(prompt_of(40), 8)
    assert world.outputs["s1"] == world.outputs["s3"] == expected(prompt_of(40), FOUR, 8).tokens


@pytest.mark.parametrize("seed", range(12))
def test_random_arrivals_aborts_and_preemptions(seed: int) -> None:
    random = Random(seed)
    block_length = random.choice((2, 4, 8))
    shapes = random.choice([fixed((8, 88), (32, 64)), free(48, 160), segmented(48, 160), fixed((16, 96), (64, 80))])
    world = world_of(shapes, block_length)
    wanted: dict[str, tuple[tuple[int, ...], Denoising | None, int]] = {}
    for number in range(14):
        settings = Denoising(
            block_length, MASK, random.randint(1, block_length), random.choice(list(Unmasking)), random.random(), 1.0
        )
        prompt, most = prompt_of(random.randint(1, 45), seed % 3), random.randint(1, 18)
        name, denoising = f"s{number}", settings if random.random() < 0.8 else None
        wanted[name] = (prompt, denoising, most)
        world.submit(name, prompt, most, denoising=denoising)
        for _ in range(random.randint(0, 4)):
            world.step()
        if random.random() < 0.2:
            world.loop.abort(name)
            del wanted[name]
    world.run()
    assert world.failures == {}
    for name, (prompt, denoising, most) in wanted.items():
        by_definition = by_hand(prompt, most) if denoising is None else expected(prompt, denoising, most).tokens
        assert world.outputs[name] == by_definition


def test_guesses_stay_with_those_that_have_a_last_token() -> None:
    world = world_of(fixed((16, 112)), lookup=RightGuesses(), lookup_rows=4)
    world.submit("block", prompt_of(9), 15, denoising=RULES["dynamic"])
    world.submit("token", prompt_of(9), 15)
    world.run()
    assert world.outputs == {
        "block": expected(prompt_of(9), RULES["dynamic"], 15).tokens,
        "token": by_hand(prompt_of(9), 15),
    }
    assert world.scheduler.counters.accepted_rows > 0


def test_the_debug_log_tells_which_rows_denoise(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of(free(64, 512))
    with caplog.at_level(logging.DEBUG, "hexserve.worker"):
        world.submit("a", prompt_of(6), 5, denoising=RULES["sequential"])
        world.run()
    lines = [record.message for record in caplog.records if record.message.startswith(("prefill", "denoise"))]
    assert lines[0].startswith("denoise a: rows 8 at position 0, last input 49, output []")
    assert lines[1].startswith(f"denoise a: rows 4 at position 4, last input 49, output {world.outputs['a'][:2]}")


def test_blocks_of_another_length_are_refused() -> None:
    world = world_of(free(64, 512), 8)
    with pytest.raises(ValueError, match="blocks of 4 tokens; those of this model have 8"):
        world.submit("a", (1, 2), 3, denoising=FOUR)
