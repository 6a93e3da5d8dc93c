"""Rows of a sequence that is denoised block by block: what a pass computes of it, and what the pass comes to."""

from collections.abc import Sequence as Run

from engine.modes.block_diffusion import ActiveBlock
from engine.modes.unmasking import Prediction
from engine.request import Request
from engine.scheduling.admission import pages_for
from engine.scheduling.ending import append_tokens, ends_within
from engine.scheduling.plan import Segment, SequenceUpdate
from engine.scheduling.sequence import Sequence


def first_block(request: Request, tokens: int, unit: int) -> ActiveBlock | None:
    """The block that a sequence of `tokens` tokens denoises first; None where it takes one token after the other.

    ValueError when the model's passes are not made for its blocks.
    """
    denoising = request.params.denoising
    if denoising is None:
        return None
    if denoising.block_length != unit:
        raise ValueError(f"blocks of {denoising.block_length} tokens; those of this model have {unit}")
    return ActiveBlock(denoising, tokens % unit)


def block_segment(sequence: Sequence, rows: int, page_columns: int) -> Segment:
    """Whole blocks behind those that are computed, to be kept; with the last of the rows wanted the block denoised.

    rows: a multiple of the block length, at most `sequence.rows_wanted`.
    """
    block, start = sequence.block, sequence.computed
    assert block is not None
    end = min(start + rows, sequence.settled_tokens)
    tokens: tuple[int, ...] = tuple(sequence.tokens[start:end])
    masked: tuple[int, ...] = ()
    if rows == sequence.rows_wanted:
        tokens += block.row_tokens(sequence.tokens[end:])
        masked = tuple(end - start + place for place in block.masked)
    return Segment(
        sequence=sequence,
        tokens=tokens,
        first_position=start,
        pages=tuple(sequence.pages[: pages_for(start, page_columns)]),
        past_columns=start,
        targets=tuple(sequence.pages[i // page_columns] * page_columns + i % page_columns for i in range(start, end)),
        logit_rows=len(masked),
        masked=masked,
    )


def take_predictions(segment: Segment, predictions: Run[Prediction], limit: int) -> SequenceUpdate:
    """Settle tokens of the block that was denoised, if one was; they are new tokens once all of them are settled.

    An answer whose end is settled, and every token before it, waits for no others. limit: most tokens of a sequence.
    """
    sequence, block = segment.sequence, segment.sequence.block
    assert block is not None
    kept_rows = len(segment.targets)
    if not segment.masked:
        return SequenceUpdate(segment, (), kept_rows)
    block.take(predictions)
    leading = block.leading
    tokens = tuple(prediction.token for prediction in leading)
    if block.masked and not ends_within(sequence, tokens, limit):
        return SequenceUpdate(segment, (), kept_rows)
    taken = append_tokens(sequence, tokens, limit)
    block.begin(0)
    logprobs = [prediction.logprob for prediction in leading[: len(taken)]]
    found = tuple(logprob for logprob in logprobs if logprob is not None)
    return SequenceUpdate(segment, taken, kept_rows, logprobs=found)
