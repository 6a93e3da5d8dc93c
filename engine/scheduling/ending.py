"""Where an answer ends: at a stop token, at max_tokens or at the end of the context."""

from collections.abc import Iterable

from engine.request import FinishReason, SamplingParams
from engine.scheduling.sequence import Sequence


def append_tokens(sequence: Sequence, new_tokens: Iterable[int], limit: int) -> tuple[int, ...]:
    """Add tokens up to the one that ends the answer, and say in `sequence.finish` that it has; those that were added.

    limit: most tokens of a sequence.
    """
    params, taken = sequence.request.params, []
    for token in new_tokens:
        if not params.max_tokens:
            sequence.finish = FinishReason.LENGTH
            break
        sequence.tokens.append(token)
        taken.append(token)
        sequence.finish = _end_of(params, token, sequence.generated, len(sequence.tokens) >= limit)
        if sequence.finish is not None:
            break
    return tuple(taken)


def _end_of(params: SamplingParams, token: int, generated: int, is_full: bool) -> FinishReason | None:
    """Why the answer ends with `token`, the last of so many; None when it goes on."""
    # Under a grammar the sampler takes a stop token before min_tokens only where there is no other.
    may_stop = generated > params.min_tokens or params.grammar is not None
    if token in params.stop_token_ids and may_stop:
        return FinishReason.STOP
    return FinishReason.LENGTH if generated >= params.max_tokens or is_full else None
