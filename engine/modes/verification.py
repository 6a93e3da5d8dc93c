"""Which guesses are kept. Lossless: what the sampler chose counts, a guess only saves the pass that it would take."""

from engine.modes.mode import Outcome


def verify(rows: int, draft: tuple[int, ...], sampled: tuple[int, ...]) -> Outcome:
    """Keep guesses up to the first that differs from the token sampled in its place, which replaces it.

    rows: all of the segment, its last ones the guesses. sampled: a token for the row before each guess and the last.
    """
    accepted = 0
    while accepted < len(draft) and draft[accepted] == sampled[accepted]:
        accepted += 1
    return Outcome(rows - len(draft) + accepted, sampled[: accepted + 1])
