"""Who may take rows, by hand."""

from dataclasses import replace

from engine.bundle.specs import ForecastSpec
from engine.core.block_diffusion import ActiveBlock
from engine.core.rows import (
    guessing,
    kv_only_rows,
    open_rows,
    plan_trees,
    prefills_of,
    take_rows,
    take_turns,
    without,
)
from engine.core.sequence import Capacity, Sequence
from engine.request import Denoising, Request, SamplingParams
from tests.engine.worker.simulation import fused


def waiting(name: str, tokens: int, order: int = 0, *, computed: int = 0, has_logprobs: bool = False) -> Sequence:
    params = SamplingParams(max_tokens=5, prompt_logprobs=0 if has_logprobs else None)
    made = Sequence(Request(name, (1,) * tokens, params), order, 0, [1] * tokens)
    made.computed = computed
    return made


def test_who_is_late_is_left_out_of_decodes() -> None:
    a, b = waiting("a", 1), waiting("b", 1)
    assert without({"a": a, "b": b}, {"a", "gone"}) == [b]
    assert without({}, {"a"}) == []


def test_prefills_take_rows_oldest_first_and_a_held_one_leaves_its_last() -> None:
    late, early = waiting("late", 10, 2), waiting("early", 20, 1, computed=5)
    assert open_rows([late, early], (), 100) == [(early, 15), (late, 10)]
    assert open_rows([late, early], {"early"}, 100) == [(early, 14), (late, 10)]


def test_rows_whose_logprobs_are_wanted_are_bounded_in_all() -> None:
    sequences = [
        waiting(name, 20, order, has_logprobs=name != "plain") for order, name in enumerate(("a", "plain", "b"))
    ]
    assert [rows for _, rows in open_rows(sequences, (), 100)] == [20, 20, 20]
    assert [rows for _, rows in open_rows(sequences, (), 32)] == [20, 20, 12]
    assert [rows for _, rows in open_rows(sequences, (), 16)] == [16, 20, 0]


def test_a_step_of_fused_graphs_takes_the_oldest_prompt_that_can_have_a_row() -> None:
    held, younger, youngest = waiting("held", 1, 1), waiting("younger", 20, 2), waiting("youngest", 20, 3)
    queue = [youngest, younger, held]
    assert prefills_of(fused(2, 8), queue, (), has_decodes=True) == [(held, 1)]
    assert prefills_of(fused(2, 8), queue, {"held"}, has_decodes=True) == [(younger, 20)]


def test_rows_before_the_first_whose_logits_are_read() -> None:
    plain, scored = waiting("plain", 20, computed=4), waiting("scored", 20, has_logprobs=True)
    assert kv_only_rows([(plain, 16), (scored, 20)]) == [(plain, 15), (scored, 0)]
    assert kv_only_rows([(plain, 9)]) == [(plain, 9)]


def test_rows_go_to_the_first_until_none_is_left() -> None:
    a, b, c = (waiting(name, 20) for name in "abc")
    assert take_rows([(a, 5), (b, 0), (c, 9)], 8) == [(a, 5), (c, 3)]
    assert take_rows([(a, 5), (b, -1), (c, 9)], 100) == [(a, 5), (c, 9)]
    assert take_rows([(a, 5)], 0) == []


def test_who_guesses_in_trees_shares_the_spare_rows_alike() -> None:
    """A node takes three rows here, its own and two forecasts; who gets no columns leaves its rows to the others."""
    shape, capacity = ForecastSpec("prefix", 16, 384, (3, 2)), Capacity(100, 1000)
    a, b, full = (waiting(name, 9, computed=8) for name in ("a", "b", "full"))
    constrained = waiting("constrained", 9, computed=8)
    constrained.request = replace(constrained.request, params=SamplingParams(5, grammar="{}"))
    for each in (a, b, full, constrained):
        each.forecasts = ((2, 3, 4, 5), (6, 7, 8, 9))
    wanted: list[tuple[str, int]] = []

    def grow(sequence: Sequence, tokens: int) -> bool:
        wanted.append((sequence.id, tokens))
        return sequence is not full

    trees = plan_trees(shape, [full, a, constrained, b], 28, 16, capacity, grow)
    assert {name: tree.nodes for name, tree in trees.items()} == {"a": 5, "b": 5}
    assert wanted == [("full", 11), ("a", 11), ("b", 11)]
    assert plan_trees(shape, [a], 28, 15, capacity, grow) == plan_trees(None, [a], 28, 16, capacity, grow) == {}


def blocks(name: str, tokens: int, order: int = 0, *, computed: int = 0) -> Sequence:
    made = waiting(name, tokens, order, computed=computed)
    made.active_block = ActiveBlock(Denoising(4, 49, 4), tokens % 4)
    return made


def test_who_denoises_takes_whole_blocks() -> None:
    token, block, prompt = waiting("t", 9, computed=8), blocks("b", 10, computed=4), blocks("p", 22)
    assert (block.rows_wanted, block.decode_rows, block.first_logit_row) == (8, 8, 8)
    assert token.rows_wanted == 1
    assert take_rows([(token, 1), (block, 8), (prompt, 24)], 8) == [(token, 1), (block, 4)]
    assert take_rows([(block, 8), (token, 1), (prompt, 24)], 30) == [(block, 8), (token, 1), (prompt, 20)]
    assert kv_only_rows([(prompt, 24), (block, 8)]) == [(prompt, 20), (block, 4)]


def test_turns_go_to_those_that_wait_the_longest_and_guesses_to_those_with_a_last_token() -> None:
    early, late, block = waiting("e", 9, 1, computed=8), waiting("l", 9, 2, computed=8), blocks("b", 8, 3, computed=4)
    early.last_served, late.last_served, block.last_served = 5, 4, 3
    assert take_turns([early, late, block], 9) == [(block, 8), (late, 1)]
    assert guessing(take_turns([early, late, block], 10)) == [late, early]
