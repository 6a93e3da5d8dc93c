"""Log-probabilities of known tokens: log-softmax of the logits as they are. R = rows, V = vocabulary."""

from collections.abc import Sequence

import numpy as np

from engine.request import TokenLogprob
from engine.sampler import UNLIKELY, BadLogits, Floats, top_ids

ROWS_AT_ONCE = 16  # bounds the scratch memory; a vocabulary is up to 256 thousand wide


def score(logits: Floats, tokens: Sequence[int], alternatives: int) -> list[TokenLogprob] | BadLogits:
    """One entry per row of logits [R, V] for the token of that row; BadLogits if a row holds no number."""
    scored: list[TokenLogprob] = []
    for start in range(0, len(tokens), ROWS_AT_ONCE):
        rows = logits[start : start + ROWS_AT_ONCE]
        top = rows.max(axis=1, keepdims=True)
        if not np.isfinite(top).all():
            return BadLogits("the graph returned no finite logits for this request")
        normalisers = top[:, 0] + np.log(np.exp(rows - top).sum(axis=1, dtype=np.float64))
        for row, token, normaliser in zip(rows, tokens[start:], normalisers.tolist(), strict=False):
            ids = top_ids(row, alternatives).tolist() if alternatives else ()
            top_entries = tuple((i, max(UNLIKELY, float(row[i]) - normaliser)) for i in ids)
            scored.append(TokenLogprob(token, max(UNLIKELY, float(row[token]) - normaliser), top_entries))
    return scored
