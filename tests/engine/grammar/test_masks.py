"""Masks against the definition of the grammar, and what the desk says while they are not there."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llguidance import LLTokenizer

from engine.grammar.masks import GrammarMasks
from engine.grammar.matching import GrammarFailed
from tests.engine.grammar.small_tokens import (
    END,
    TEXTS,
    Inline,
    OnDemand,
    allowed,
    grammar,
    inline_desk,
    small_tokenizer,
)


def taken(desk: GrammarMasks, name: str = "a") -> list[set[int] | None]:
    masks = desk.take(name)
    assert masks is not None
    return [None if mask is None else set(np.flatnonzero(~mask).tolist()) for mask in masks]


@given(st.data())
def test_every_mask_on_the_way_is_the_definition(data: st.DataObject) -> None:
    desk = inline_desk()
    desk.open("a", grammar(), ())
    said: list[int] = []
    while True:
        expected = allowed(TEXTS, said)
        assert taken(desk) == [expected]
        token = data.draw(st.sampled_from(sorted(expected)))
        if token == END:
            break
        said.append(token)
        desk.advance("a", (token,))


@given(st.sampled_from(TEXTS), st.integers(0, 8))
def test_a_replay_is_where_it_was(text: str, length: int) -> None:
    said = [ord(character) - 48 for character in text[:length]]
    desk = inline_desk()
    desk.open("a", grammar(), said)
    assert taken(desk) == [allowed(TEXTS, said)]


@given(st.lists(st.sampled_from((0, 9, 1, 17, END)), min_size=1, max_size=6))
@example([9, 9, END])
@example([9, 9, END, END, 0])
@example([1, 1, 2, 2, 3, 3, 17, 17, 18, 18, END])
def test_masks_behind_guesses(guesses: list[int]) -> None:
    desk = inline_desk()
    desk.open("a", grammar(), (0, 0))
    desk.guess("a", tuple(guesses))
    expected: list[set[int] | None] = [allowed(TEXTS, [0, 0])]
    for index, guess in enumerate(guesses):
        if guess == END:  # what would follow the end is never used
            break
        fits = expected[-1] is not None and guess in expected[-1]
        expected.append(allowed(TEXTS, [0, 0, *guesses[: index + 1]]) if fits else None)
    assert taken(desk)[: len(expected)] == expected
    desk.guess("a", ())  # nothing of the walk is left
    assert taken(desk) == [allowed(TEXTS, [0, 0])]
    desk.advance("a", (9,))
    assert taken(desk) == [allowed(TEXTS, [0, 0, 9])]


def test_copies_of_one_grammar_go_their_own_ways() -> None:
    desk = inline_desk()
    for name in ("a", "b"):
        desk.open(name, grammar(), ())
    desk.advance("a", (0,))
    desk.advance("b", (17,))
    assert taken(desk, "a") == [allowed(TEXTS, [0])]
    assert taken(desk, "b") == [allowed(TEXTS, [17])]


def test_late_until_it_is_there() -> None:
    builds, steps = OnDemand(), OnDemand()
    desk = GrammarMasks(small_tokenizer, builds, steps)
    desk.open("a", grammar(), ())
    assert desk.late() == {"a"}
    builds.run()
    assert desk.late() == {"a"} and desk.take("a") is None
    steps.run()
    assert desk.late() == set()
    desk.advance("a", (0,))
    assert desk.late() == set()  # it may well be there after the pass
    assert desk.take("a") is None
    assert desk.late() == {"a"}
    steps.run()
    assert desk.late() == set() and taken(desk) == [allowed(TEXTS, [0])]


def test_a_slow_build_keeps_no_other_waiting() -> None:
    builds = OnDemand()
    desk = GrammarMasks(small_tokenizer, builds, Inline())
    desk.open("quick", grammar(), ())
    builds.run()
    desk.open("slow", grammar(("0",)), ())
    desk.advance("quick", (0,))
    assert taken(desk, "quick") == [allowed(TEXTS, [0])]
    assert desk.late() == {"slow"}


@pytest.mark.parametrize("emitted", [(5,), (0, 0, 9, 9, 9)])
def test_a_text_that_does_not_fit_fails_its_own_sequence(emitted: tuple[int, ...]) -> None:
    desk = inline_desk()
    desk.open("bad", grammar(), emitted)
    desk.open("good", grammar(), ())
    with pytest.raises(GrammarFailed):
        desk.take("bad")
    assert taken(desk, "good") == [allowed(TEXTS, [])]


def test_whatever_breaks_in_a_thread_is_the_sequences_own_failure() -> None:
    class Panic(BaseException):
        """llguidance's own panics are no Exceptions."""

    def broken() -> LLTokenizer:
        raise Panic("no tokenizer")

    desk = GrammarMasks(broken, OnDemand(), Inline())
    desk.open("a", grammar(), ())
    assert isinstance(desk._builds, OnDemand)
    desk._builds.run()
    with pytest.raises(GrammarFailed, match="no tokenizer"):
        desk.take("a")
    assert desk.late() == set()


def test_a_grammar_that_llguidance_refuses() -> None:
    desk = inline_desk()
    desk.open("bad", '{"grammars": [{"lark_grammar": "start: ("}]}', ())
    with pytest.raises(GrammarFailed, match="Expected token"):
        desk.take("bad")
