"""The rows of one sequence in a pass."""

from engine.modes.forecast_tree import ForecastTree
from engine.scheduling.admission import pages_for
from engine.scheduling.block_rows import block_segment
from engine.scheduling.plan import Segment
from engine.scheduling.sequence import Sequence
from engine.scheduling.state_borders import StateBorders


def make_segment(
    sequence: Sequence,
    rows: int,
    draft: tuple[int, ...],
    tree: ForecastTree | None,
    page_columns: int,
    states: StateBorders,
) -> Segment:
    """The next `rows` tokens to compute and the guesses behind them; `tree` takes the place of a last lone row.

    Of a sequence that is denoised: its next blocks.
    """
    if sequence.block is not None:
        return block_segment(sequence, rows, page_columns)
    start, end = sequence.computed, sequence.computed + rows
    known = () if sequence.has_prompt_logprobs else sequence.tokens[max(start, sequence.first_logit_row) + 1 : end + 1]
    sampled = 1 + len(draft) if end == len(sequence.tokens) else 0
    columns = range(start, end + (tree.depth if tree is not None else len(draft)))
    return Segment(
        sequence=sequence,
        tokens=tree.tokens if tree is not None else (*sequence.tokens[start:end], *draft),
        first_position=start,
        pages=tuple(sequence.pages[: pages_for(start, page_columns)]),
        past_columns=start,
        targets=tuple(sequence.pages[i // page_columns] * page_columns + i % page_columns for i in columns),
        logit_rows=len(tree.tokens) if tree is not None else len(known) + sampled,
        logprob_tokens=tuple(known),
        tree=tree,
        state_key=states.origin(sequence),
        snapshots=states.wanted(sequence, end),
    )
