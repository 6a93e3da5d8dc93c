"""Prompt lookup against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from engine.modes.prompt_lookup import PromptLookup


def test_lookup_takes_what_followed_the_latest_longest_match() -> None:
    mode = PromptLookup(longest=3, shortest=1)
    assert mode.propose([1, 2, 3, 4, 1, 2, 3], 2) == (4, 1)
    assert mode.propose([7, 1, 8, 1, 9, 1], 1) == (9,)
    assert mode.propose([1, 2, 3], 4) == ()
    assert mode.propose([5], 4) == ()


@given(st.lists(st.integers(0, 3), max_size=5), st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_lookup_keeps_guesses_only_where_the_sampler_agrees(draft: list[int], sampled: list[int]) -> None:
    outcome = PromptLookup().resolve(1 + len(draft), tuple(draft), tuple(sampled[: len(draft) + 1]))
    accepted = outcome.kept_rows - 1
    assert outcome.new_tokens == tuple(sampled[: accepted + 1])
    assert tuple(draft[:accepted]) == tuple(sampled[:accepted])
    assert accepted == len(draft) or draft[accepted] != sampled[accepted]
