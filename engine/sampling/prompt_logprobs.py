"""Log-probabilities of known tokens: log-softmax of the logits as they are. R = rows, V = vocabulary."""

from collections.abc import Sequence

import numpy as np

from engine.graphs.logits import Logits
from engine.request import TokenLogprob
from engine.sampling.candidates import top_ids
from engine.sampling.sampler import UNLIKELY, BadLogits
from engine.scheduling.plan import StepPlan

ROWS_AT_ONCE = 16  # bounds the scratch memory; a vocabulary is up to 256 thousand wide


def token_logprobs(logits: Logits, tokens: Sequence[int], alternatives: int) -> list[TokenLogprob] | BadLogits:
    """One entry per row of logits [R, V] for the token of that row; BadLogits if a row holds no number."""
    found: list[TokenLogprob] = []
    for start in range(0, len(tokens), ROWS_AT_ONCE):
        rows = logits.rows(start, start + ROWS_AT_ONCE).decoded()
        top = rows.max(axis=1, keepdims=True)
        if not np.isfinite(top).all():
            return BadLogits("the graph returned no finite logits for this request")
        normalisers = top[:, 0] + np.log(np.exp(rows - top).sum(axis=1, dtype=np.float64))
        for row, token, normaliser in zip(rows, tokens[start:], normalisers.tolist(), strict=False):
            ids = top_ids(row, alternatives).tolist() if alternatives else ()
            top_entries = tuple((i, max(UNLIKELY, float(row[i]) - normaliser)) for i in ids)
            found.append(TokenLogprob(token, max(UNLIKELY, float(row[token]) - normaliser), top_entries))
    return found


def take_prompt_logprobs(plan: StepPlan, logits: Logits) -> tuple[Logits, dict[str, BadLogits]]:
    """Note the log-probabilities of a pass's prompt tokens with their sequences. `logits` [R, V]: all logit rows.

    Returns the logits [S, V] of the rows that are sampled, and by id the sequences whose rows held no number.
    """
    bad: dict[str, BadLogits] = {}
    if not any(segment.logprob_tokens for segment in plan.segments):
        return logits, bad
    left = []
    place = 0
    for segment in plan.segments:
        middle, end = place + len(segment.logprob_tokens), place + segment.logit_rows
        if segment.logprob_tokens:
            sequence = segment.sequence
            found = token_logprobs(
                logits.rows(place, middle), segment.logprob_tokens, sequence.request.params.prompt_logprobs or 0
            )
            if isinstance(found, BadLogits):
                bad[sequence.id] = found
            else:
                sequence.prompt_logprobs += found
        left.append(logits.codes[middle:end])
        place = end
    return Logits(np.concatenate(left), logits.encoding), bad
