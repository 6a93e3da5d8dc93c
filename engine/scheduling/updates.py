"""What a pass came to for a sequence that takes one token after the other: new tokens, and rows that are kept."""

from engine.modes.forecast_tree import TreeOutcome
from engine.modes.mode import Mode, Outcome
from engine.scheduling.ending import append_tokens
from engine.scheduling.guesses import Guesser
from engine.scheduling.plan import Segment, SequenceUpdate
from engine.scheduling.rules import Rules


def take_tokens(
    segment: Segment,
    sampled: tuple[int, ...] | None,
    grown: TreeOutcome | None,
    mode: Mode,
    guesser: Guesser,
    rules: Rules,
) -> SequenceUpdate:
    """Add what was sampled to the sequence, and judge its guesses.

    `sampled` is None for a sequence that was not sampled: no guess is judged, and no part of a state is kept. grown: of
    its tree.
    """
    sequence = segment.sequence
    draft = segment.guesses if sampled is not None else ()
    sequence.forecasts = grown.candidates if grown is not None else ()
    if segment.tree is not None:
        draft, outcome = draft[: segment.tree.nodes - 1], Outcome(len(sampled or ()), sampled or ())
    elif sampled is None:
        outcome = Outcome(0 if rules.is_recurrent else len(segment.tokens) - segment.sampled_rows, ())
    else:
        outcome = mode.resolve(len(segment.tokens), draft, sampled)
    taken = append_tokens(sequence, outcome.new_tokens, rules.capacity.tokens_per_sequence)
    accepted = max(0, len(taken) - 1)
    if draft:
        guesser.judge(sequence, len(draft), len(outcome.new_tokens) - 1, accepted)
    # A stop token inside an accepted draft cuts the tokens, so the rows of those behind it are not kept.
    kept_rows = outcome.kept_rows - (len(outcome.new_tokens) - len(taken))
    path = grown.path if grown is not None else ()
    return SequenceUpdate(segment, taken, kept_rows, len(draft), accepted, path=path)
