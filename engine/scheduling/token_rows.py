"""Rows of a sequence that takes one token after the other: known tokens, and guesses behind them."""

from engine.scheduling.admission import pages_for
from engine.scheduling.plan import Segment
from engine.scheduling.sequence import Sequence
from engine.scheduling.state_borders import StateBorders


def token_segment(
    sequence: Sequence, rows: int, draft: tuple[int, ...], page_columns: int, states: StateBorders
) -> Segment:
    """The next `rows` tokens that are not computed, then the guesses of `draft`, for which it has columns."""
    start, end = sequence.computed, sequence.computed + rows
    known = () if sequence.has_prompt_logprobs else sequence.tokens[max(start, sequence.first_logit_row) + 1 : end + 1]
    sampled = 1 + len(draft) if end == len(sequence.tokens) else 0
    columns = [
        sequence.pages[i // page_columns] * page_columns + i % page_columns for i in range(start, end + len(draft))
    ]
    return Segment(
        sequence=sequence,
        tokens=(*sequence.tokens[start:end], *draft),
        first_position=start,
        pages=tuple(sequence.pages[: pages_for(start, page_columns)]),
        past_columns=start,
        targets=tuple(columns),
        logit_rows=len(known) + sampled,
        logprob_tokens=tuple(known),
        state_key=states.origin(sequence),
        snapshots=states.wanted(sequence, end),
    )
