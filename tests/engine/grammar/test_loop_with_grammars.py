"""Sequences with grammars through the real scheduler and loop, over a runtime that can be computed by hand."""

import pytest

from engine.core.speculation import PromptLookup
from engine.grammar.masks import GrammarMasks
from engine.request import FinishReason
from tests.engine.fake_runtime import expected_token
from tests.engine.grammar.small_tokens import (
    END,
    TEXTS,
    Inline,
    OnDemand,
    allowed,
    grammar,
    inline_masks,
    small_tokenizer,
    text_of,
)
from tests.engine.worker.simulation import VOCAB, by_hand, fixed, free, simulate


def followed(prompt: tuple[int, ...], texts: tuple[str, ...] = TEXTS, most: int = 50) -> list[int]:
    """The completion by definition: the model's token where it is allowed, else the lowest that is."""
    said: list[int] = []
    while len(said) < most and END not in said:
        wanted = expected_token(list(enumerate([*prompt, *said])), VOCAB)
        choices = allowed(texts, said)
        said.append(wanted if wanted in choices else min(choices))
    return said


def asked(**more: object) -> dict[str, object]:
    return {"grammar": grammar(), "stop_token_ids": (END,), **more}


def test_texts_are_those_of_the_definition_beside_free_neighbours() -> None:
    world = simulate(fixed((8, 240)), masks=inline_masks())
    for index in range(6):
        world.submit(f"bound{index}", (index + 1, 7), 50, **asked())
        world.submit(f"free{index}", (index + 1, 9), 12)
    world.run()
    for index in range(6):
        assert world.outputs[f"bound{index}"] == followed((index + 1, 7))
        assert world.finishes[f"bound{index}"] is FinishReason.STOP
        assert world.outputs[f"free{index}"] == by_hand((index + 1, 9), 12)


def test_max_tokens_cuts_with_length() -> None:
    world = simulate(free(8, 256), masks=inline_masks())
    world.submit("a", (3, 1), 2, **asked(grammar=grammar(TEXTS[:1])))
    world.run()
    assert world.outputs["a"] == [0, 0] and world.finishes["a"] is FinishReason.LENGTH


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_tokens_of_an_earlier_worker_are_replayed(cut: int) -> None:
    texts = (TEXTS[0], TEXTS[6])
    whole = followed((5, 5), texts)
    world = simulate(free(8, 256), masks=inline_masks())
    world.submit("a", (5, 5), 50, emitted=whole[:cut], **asked(grammar=grammar(texts)))
    world.run()
    assert world.outputs["a"] == whole


def test_preempted_sequences_go_on_where_they_were() -> None:
    texts = (TEXTS[5],)
    world = simulate(fixed((8, 80)), masks=inline_masks())
    prompts = {f"s{index}": tuple(range(index, index + 20)) for index in range(4)}
    for name, prompt in prompts.items():
        world.submit(name, prompt, 60, **asked(grammar=grammar(texts)))
    world.run()
    assert world.scheduler.counters.preemptions > 0
    assert {name: world.outputs[name] for name in prompts} == {n: followed(p, texts) for n, p in prompts.items()}


def test_guesses_are_checked_against_the_grammar() -> None:
    texts = ("ABABABABABABABAB", "ABABABABABABABAC")
    prompt = tuple(ord(character) - 48 for character in "ABABABABZABAB")
    world = simulate(fixed((8, 240)), lookup=PromptLookup(), lookup_rows=6, masks=inline_masks())
    world.submit("a", prompt, 50, **asked(grammar=grammar(texts)))
    count = world.run()
    assert world.outputs["a"] == followed(prompt, texts)
    assert world.scheduler.counters.accepted_rows > 3
    assert count < len(world.outputs["a"])


def test_a_late_mask_keeps_nobody_waiting_and_loses_nothing() -> None:
    builds, steps = OnDemand(), OnDemand()
    world = simulate(fixed((8, 240)), masks=GrammarMasks(small_tokenizer, builds, steps))
    world.submit("bound", tuple(range(20)), 50, **asked())
    world.submit("free", (1, 2, 3), 12)
    for _ in range(16):  # the grammar is still being built: the neighbour runs from beginning to end
        world.step()
    assert world.outputs["free"] == by_hand((1, 2, 3), 12) and world.finishes["free"] is FinishReason.LENGTH
    bound = world.scheduler.find("bound")
    assert bound is not None and bound.computed == 19 and world.outputs["bound"] == []
    builds.run()
    world.submit("other", (4, 5), 200)
    while "bound" not in world.finishes:  # each mask comes one step late
        steps.run()
        for _ in range(2):
            before = len(world.outputs["other"])
            world.step()
            assert len(world.outputs["other"]) == before + 1
    assert world.outputs["bound"] == followed(tuple(range(20)))
    world.run()
    assert world.outputs["other"] == by_hand((4, 5), 200)


def test_waiting_for_masks_alone_is_no_busy_loop_and_an_abort_ends_it() -> None:
    masks = GrammarMasks(small_tokenizer, OnDemand(), Inline())
    world = simulate(fixed((8, 120)), masks=masks)
    world.submit("a", (1,), 5, **asked())
    world.submit("b", (1, 2), 5, **asked())
    for _ in range(3):
        world.step()
    assert len(world.runtime.steps) == 1  # the prompt of b but for its last token
    for name in ("a", "b"):
        world.loop.abort(name)
    assert not world.scheduler.has_work and masks.ids == ()


def test_a_broken_matcher_fails_its_request_only() -> None:
    world = simulate(fixed((8, 120)), masks=inline_masks())
    world.submit("bad", (1, 2), 5, **asked(grammar='{"grammars": [{"lark_grammar": "start: ("}]}'))
    world.submit("good", (1, 2), 50, **asked())
    world.run()
    assert list(world.failures) == ["bad"] and "grammar" in world.failures["bad"]
    assert world.outputs["good"] == followed((1, 2))


def test_a_failed_pass_leaves_no_matcher_behind() -> None:
    masks = inline_masks()
    world = simulate(fixed((8, 120)), masks=masks)
    world.runtime.fail_at = 1
    world.submit("a", (1, 2), 50, **asked())
    world.run()
    assert list(world.failures) == ["a"] and masks.ids == ()


def test_min_tokens_gives_way_where_the_grammar_leaves_nothing_else() -> None:
    world = simulate(fixed((8, 120)), masks=inline_masks())
    world.submit("short", (1, 2), 50, **asked(grammar=grammar(("A",)), min_tokens=10))
    world.submit("longer", (1, 2), 50, **asked(grammar=grammar(("A", "AB")), min_tokens=2))
    world.run()
    assert text_of(world.outputs["short"]) == "A" and text_of(world.outputs["longer"]) == "AB"
    assert world.finishes["short"] is world.finishes["longer"] is FinishReason.STOP


def test_no_bias_leads_out_of_the_grammar() -> None:
    world = simulate(fixed((8, 120)), masks=inline_masks())
    world.submit("a", (1, 2), 50, **asked(logit_bias=((8, 100.0), (END, 100.0), (0, -100.0)), presence_penalty=-2.0))
    world.run()
    assert text_of(world.outputs["a"]) in TEXTS
