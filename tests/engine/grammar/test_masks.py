"""Masks against the definition of the grammar, and what is said while they are not there."""

from threading import Thread

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from engine.grammar.masks import KEPT_GRAMMARS, GrammarFailed, GrammarMasks
from tests.engine.grammar.small_tokens import (
    END,
    TEXTS,
    Inline,
    OnDemand,
    allowed,
    grammar,
    inline_masks,
    small_tokenizer,
)


def taken(masks: GrammarMasks, name: str = "a") -> list[set[int] | None]:
    found = masks.take(name)
    assert found is not None
    return [None if mask is None else set(np.flatnonzero(~mask).tolist()) for mask in found]


@given(st.data())
def test_every_mask_on_the_way_is_the_definition(data: st.DataObject) -> None:
    masks = inline_masks()
    masks.open("a", grammar(), ())
    said: list[int] = []
    while True:
        expected = allowed(TEXTS, said)
        assert taken(masks) == [expected]
        token = data.draw(st.sampled_from(sorted(expected)))
        if token == END:
            break
        said.append(token)
        masks.advance("a", (token,))


@given(st.sampled_from(TEXTS), st.integers(0, 8))
def test_a_replay_is_where_it_was(text: str, length: int) -> None:
    said = [ord(character) - 48 for character in text[:length]]
    masks = inline_masks()
    masks.open("a", grammar(), said)
    assert taken(masks) == [allowed(TEXTS, said)]


@given(st.lists(st.sampled_from((0, 9, 1, 17, END)), min_size=1, max_size=6))
@example([9, 9, END])
@example([9, 9, END, END, 0])
@example([1, 1, 2, 2, 3, 3, 17, 17, 18, 18, END])
def test_masks_behind_guesses(guesses: list[int]) -> None:
    masks = inline_masks()
    masks.open("a", grammar(), (0, 0))
    masks.guess("a", tuple(guesses))
    expected: list[set[int] | None] = [allowed(TEXTS, [0, 0])]
    for index, guess in enumerate(guesses):
        if guess == END:  # what would follow the end is never used
            break
        fits = expected[-1] is not None and guess in expected[-1]
        expected.append(allowed(TEXTS, [0, 0, *guesses[: index + 1]]) if fits else None)
    assert taken(masks)[: len(expected)] == expected
    masks.guess("a", ())  # nothing of the walk is left
    assert taken(masks) == [allowed(TEXTS, [0, 0])]
    masks.advance("a", (9,))
    assert taken(masks) == [allowed(TEXTS, [0, 0, 9])]


def test_copies_of_one_grammar_go_their_own_ways() -> None:
    masks = inline_masks()
    for name in ("a", "b"):
        masks.open(name, grammar(), ())
    masks.advance("a", (0,))
    masks.advance("b", (17,))
    assert taken(masks, "a") == [allowed(TEXTS, [0])]
    assert taken(masks, "b") == [allowed(TEXTS, [17])]


def test_the_grammar_that_was_used_longest_ago_is_forgotten() -> None:
    built: list[str] = []

    class Counting(GrammarMasks):
        def _build(self, grammar: str) -> LLMatcher:
            built.append(grammar)
            return super()._build(grammar)

    masks, texts = Counting(small_tokenizer, Inline(), Inline()), [grammar((str(n),)) for n in range(KEPT_GRAMMARS + 1)]
    for number, text in enumerate([*texts[:-1], texts[0], texts[-1], texts[0], texts[1]]):
        masks.open(str(number), text, ())
    assert built == [*texts, texts[1]]


def test_late_until_it_is_there() -> None:
    builds, steps = OnDemand(), OnDemand()
    masks = GrammarMasks(small_tokenizer, builds, steps)
    masks.open("a", grammar(), ())
    assert masks.late() == {"a"}
    builds.run()
    assert masks.late() == {"a"} and masks.take("a") is None
    steps.run()
    assert masks.late() == set()
    masks.advance("a", (0,))
    assert masks.late() == set()  # it may well be there after the pass
    assert masks.take("a") is None
    assert masks.late() == {"a"}
    steps.run()
    assert masks.late() == set() and taken(masks) == [allowed(TEXTS, [0])]


def test_a_slow_build_keeps_no_other_waiting() -> None:
    builds = OnDemand()
    masks = GrammarMasks(small_tokenizer, builds, Inline())
    masks.open("quick", grammar(), ())
    builds.run()
    masks.open("slow", grammar(("0",)), ())
    masks.advance("quick", (0,))
    assert taken(masks, "quick") == [allowed(TEXTS, [0])]
    assert masks.late() == {"slow"}


@pytest.mark.parametrize("emitted", [(5,), (0, 0, 9, 9, 9)])
def test_a_text_that_does_not_fit_fails_its_own_sequence(emitted: tuple[int, ...]) -> None:
    masks = inline_masks()
    masks.open("bad", grammar(), emitted)
    masks.open("good", grammar(), ())
    with pytest.raises(GrammarFailed):
        masks.take("bad")
    assert taken(masks, "good") == [allowed(TEXTS, [])]


def test_whatever_breaks_in_a_thread_is_the_sequences_own_failure() -> None:
    class Panic(BaseException):
        """llguidance's own panics are no Exceptions."""

    def broken() -> LLTokenizer:
        raise Panic("no tokenizer")

    masks = GrammarMasks(broken, OnDemand(), Inline())
    masks.open("a", grammar(), ())
    assert isinstance(masks._builds, OnDemand)
    masks._builds.run()
    with pytest.raises(GrammarFailed, match="no tokenizer"):
        masks.take("a")
    assert masks.late() == set()


def test_a_grammar_that_llguidance_refuses() -> None:
    masks = inline_masks()
    masks.open("bad", '{"grammars": [{"lark_grammar": "start: ("}]}', ())
    with pytest.raises(GrammarFailed, match="Expected token"):
        masks.take("bad")


def test_ready_is_said_when_taking_would_not_wait() -> None:
    builds, steps = OnDemand(), OnDemand()
    masks = GrammarMasks(small_tokenizer, builds, steps)
    masks.open("a", grammar(), ())
    assert not masks.is_ready("a")
    builds.run()
    steps.run()
    assert masks.is_ready("a")
    masks.advance("a", (0,))
    assert not masks.is_ready("a")


def test_waiting_ends_with_the_first_mask_that_is_there() -> None:
    builds, steps = OnDemand(), OnDemand()
    masks = GrammarMasks(small_tokenizer, builds, steps)
    masks.wait(30.0)  # for nobody: at once
    masks.open("a", grammar(), ())
    builds.run()
    masks.wait(0.0)
    assert not masks.is_ready("a")
    thread = Thread(target=steps.run)
    thread.start()
    masks.wait(30.0)
    assert masks.is_ready("a")
    thread.join()
