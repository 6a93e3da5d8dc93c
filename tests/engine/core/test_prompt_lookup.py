"""Prompt lookup against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from engine.core.speculation import PromptLookup, verify


def test_lookup_takes_what_followed_the_latest_longest_match() -> None:
    mode = PromptLookup(longest=3, shortest=1)
    assert mode.propose([1, 2, 3, 4, 1, 2, 3], 2) == (4, 1)
    assert mode.propose([7, 1, 8, 1, 9, 1], 1) == (9,)
    assert mode.propose([1, 2, 3], 4) == ()
    assert mode.propose([5], 4) == ()


@given(st.lists(st.integers(0, 3), max_size=5), st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_lookup_keeps_guesses_only_where_the_sampler_agrees(draft: list[int], sampled: list[int]) -> None:
    outcome = verify(1 + len(draft), tuple(draft), tuple(sampled[: len(draft) + 1]))
    accepted = outcome.kept_rows - 1
    assert outcome.new_tokens == tuple(sampled[: accepted + 1])
    assert tuple(draft[:accepted]) == tuple(sampled[:accepted])
    assert accepted == len(draft) or draft[accepted] != sampled[accepted]


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 5), st.integers(3, 30))
def test_lookup_is_its_definition(tokens: list[int], limit: int, window: int) -> None:
    """The longest ending of 4 to 2 tokens that occurs before counts; of several the latest."""

    def defined() -> tuple[int, ...]:
        recent = tokens[-window:]
        for size in (4, 3, 2):
            for start in range(len(recent) - size - 1, -1, -1):
                if recent[start : start + size] == recent[-size:]:
                    return tuple(recent[start + size : start + size + limit])
        return ()

    assert PromptLookup(window=window).propose(tokens, limit) == defined()
