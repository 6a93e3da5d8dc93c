"""The plain mode against its definition."""

from engine.modes.autoregressive import Autoregressive


def test_autoregressive_keeps_every_row_and_never_guesses() -> None:
    mode = Autoregressive()
    assert mode.propose([1, 2, 1, 2], 4) == ()
    outcome = mode.resolve(5, (), (9,))
    assert (outcome.kept_rows, outcome.new_tokens) == (5, (9,))
