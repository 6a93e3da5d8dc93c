"""Stop strings against a definition by brute force."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.text.assembler import StopMatcher

SHORT = st.text("ab", min_size=1, max_size=4)


def by_hand(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    """Grow the text by one character; the first time it ends in a stop, the longest such stop wins."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def run(pieces: list[str], stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    """Push the pieces; after each, check that no more is held back than could become a stop."""
    matcher, given_out, seen = StopMatcher(stops, include), "", ""
    for piece in pieces:
        seen += piece
        given_out += matcher.push(piece)
        if matcher.matched is not None:
            return given_out, matcher.matched
        held = max((n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])), default=0)
        assert len(seen) - len(given_out) == held
    return given_out + matcher.flush(), None


@given(st.lists(st.text("ab", max_size=5)), st.lists(SHORT, max_size=4).map(tuple), st.booleans())
@example(["abc"], ("abcd", "bc"), False)
@example(["a", "", "ab"], ("aab",), True)
def test_equals_the_definition(pieces: list[str], stops: tuple[str, ...], include: bool) -> None:
    assert run(pieces, stops, include) == by_hand("".join(pieces), stops, include)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_across_pieces(include: bool) -> None:
    matcher = StopMatcher(("\nUser:",), include)
    assert [matcher.push(piece) for piece in ("Hello", "\n", "Us")] == ["Hello", "", ""]
    assert matcher.push("er: more") == ("\nUser:" if include else "")
    assert matcher.matched == "\nUser:"


def test_what_was_held_comes_when_it_is_no_stop() -> None:
    matcher = StopMatcher(("END",))
    assert [matcher.push(piece) for piece in ("E", "N", "x")] == ["", "", "ENx"]
    assert matcher.push("EN") == ""
    assert matcher.flush() == "EN"


def test_a_long_beginning_is_held_for_as_long_as_it_may_be_a_stop() -> None:
    matcher = StopMatcher(("a" * 2000 + "b",))
    assert sum(len(matcher.push("a")) for _ in range(20_000)) == 18_000


def test_nothing_of_a_stop_comes_out_behind_it() -> None:
    for include, shown in ((False, ""), (True, "END")):
        matcher = StopMatcher(("END",), include)
        assert (matcher.push("E"), matcher.push("N"), matcher.push("Dx")) == ("", "", shown)
        assert (matcher.matched, matcher.flush()) == ("END", "")
