"""Each mode against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from engine.modes.autoregressive import Autoregressive
from engine.modes.prompt_lookup import PromptLookup


def test_autoregressive_keeps_every_row_and_never_guesses() -> None:
    mode = Autoregressive()
    assert mode.propose([1, 2, 1, 2], 4) == ()
    outcome = mode.resolve(5, (), (9,))
    assert (outcome.kept_rows, outcome.new_tokens) == (5, (9,))


def test_lookup_takes_what_followed_the_latest_longest_match() -> None:
    mode = PromptLookup(longest=3, shortest=1)
    assert mode.propose([1, 2, 3, 4, 1, 2, 3], 2) == (4, 1)
    assert mode.propose([7, 1, 8, 1, 9, 1], 1) == (9,)
    assert mode.propose([1, 2, 3], 4) == ()
    assert mode.propose([5], 4) == ()


@given(st.lists(st.integers(0, 3), max_size=5), st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_lookup_keeps_guesses_only_where_the_sampler_agrees(draft: list[int], picks: list[int]) -> None:
    outcome = PromptLookup().resolve(1 + len(draft), tuple(draft), tuple(picks[: len(draft) + 1]))
    accepted = outcome.kept_rows - 1
    assert outcome.new_tokens == tuple(picks[: accepted + 1])
    assert tuple(draft[:accepted]) == tuple(picks[:accepted])
    assert accepted == len(draft) or draft[accepted] != picks[accepted]
