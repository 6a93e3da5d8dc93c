"""What a pass did, as lines for the debug log. Ids only: the worker knows no text."""

from collections.abc import Iterator

from engine.scheduling.plan import SequenceUpdate, StepPlan


def trace(plan: StepPlan, updates: list[SequenceUpdate], number: int, limit: int) -> Iterator[str]:
    """One line for the pass, one for each sequence in it, one more for each that ended."""
    yield f"pass {number}: {plan.shape} pool {plan.pool}, {plan.rows_used} of {plan.shape.rows} rows used"
    for update in updates:
        sequence, segment = update.sequence, update.segment
        kind = "denoise" if segment.masked else "decode" if segment.is_decode else "prefill"
        yield (
            f"{kind} {sequence.id}: rows {len(segment.tokens)} at position {segment.first_position}, "
            f"last input {segment.tokens[-1]}, output {list(update.new_tokens)}, length {len(sequence.tokens)}, "
            f"cached {sequence.computed}"
        )
        if sequence.finish is not None:
            yield (
                f"end {sequence.id}: {sequence.finish}, {sequence.generated} generated, "
                f"length {len(sequence.tokens)}, room for {limit - len(sequence.tokens)} more"
            )
