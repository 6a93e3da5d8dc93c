"""Steps 0 to 2 of the sampler on one row of real numbers: grammar, bias, end tokens, thinking budget, penalties."""

import numpy as np
from numpy.typing import NDArray

from engine.sampling.row_context import RowContext
from engine.sampling.thinking_budget import forced_token


def has_changes(row: RowContext) -> bool:
    """Whether a step other than the grammar's applies to a row."""
    params = row.params
    return bool(
        params.logit_bias
        or params.repetition_penalty != 1.0
        or params.frequency_penalty
        or params.presence_penalty
        or row.index < params.min_tokens
        or params.thinking_budget is not None
    )


def adjust(values: NDArray[np.float32], row: RowContext) -> None:
    """Change the logits [V] of a row in place; a token that must not be chosen gets -infinity."""
    params = row.params
    if row.forbidden is not None:
        values[np.flatnonzero(row.forbidden[: len(values)])] = -np.inf
    for token, bias in params.logit_bias:
        values[token] += bias
    if row.index < params.min_tokens:
        _delay_stop(values, row)
    if params.repetition_penalty != 1.0:
        seen = np.zeros(len(values), np.bool_)
        for tokens in (row.prompt, row.completion):
            seen[np.asarray(tokens, np.int64)] = True
        old = values[seen]
        penalty = np.float32(params.repetition_penalty)
        values[seen] = np.where(old > 0, old / penalty, old * penalty)
    if (params.frequency_penalty or params.presence_penalty) and row.completion:
        used, counts = np.unique(np.array(row.completion, np.int64), return_counts=True)
        values[used] -= (params.frequency_penalty * counts + params.presence_penalty).astype(np.float32)
    forced = None if params.thinking_budget is None else forced_token(params.thinking_budget, row.completion)
    if forced is not None and (row.forbidden is None or not row.forbidden[forced]):
        values[:] = -np.inf
        values[forced] = 0.0


def _delay_stop(values: NDArray[np.float32], row: RowContext) -> None:
    """Forbid the stop tokens, unless the grammar allows no others."""
    stops = list(row.params.stop_token_ids)
    allowed = values[stops]
    values[stops] = -np.inf
    if row.forbidden is not None and not np.isfinite(values.max()):
        values[stops] = allowed
