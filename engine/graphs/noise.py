"""Logits that nobody computed, with the shape of a language model's: a wide background and a few likely tokens."""

import numpy as np

from engine.bundle.encoding import Array, Encoding

BACKGROUND = 2.0  # standard deviation of the logits of all tokens
LIKELY = 200  # tokens a row that stand out
LIKELIEST = 16.0  # logit of the first of them, above the background's middle
FALL = 1.5  # a token's logit is that much lower than that of a token of e times smaller rank
UNLIKELY = -16.0
# Enough that the rows of several passes differ and do not all lie in a processor's cache; made once.
NOISE_ROWS = 96
SEED = 20


def noise_logits(vocab: int, encoding: Encoding, never: tuple[int, ...]) -> Array:
    """[NOISE_ROWS, V] in `encoding`, the same at every start. Tokens of `never` are the least likely of all."""
    source = np.random.default_rng(SEED)
    likely = min(LIKELY, vocab)
    heads = LIKELIEST - FALL * np.log(np.arange(1, likely + 1))
    made = np.empty((NOISE_ROWS, vocab), encoding.dtype)
    for row in made:
        values = source.standard_normal(vocab, np.float32) * np.float32(BACKGROUND)
        values[source.choice(vocab, likely, replace=False)] = heads
        values[list(never)] = UNLIKELY
        row[...] = encoding.encode(values.astype(np.float64))
    return made
