"""Perplexity, divergence, agreement and their intervals, against their definitions written down plainly."""

import math

import numpy as np

from engine.compile.check.parity import BLOCK_TOKENS, draw, interval


def test_intervals_hold_what_is_true_as_often_as_they_say() -> None:
    """Texts whose tokens' losses hang together over some 20 neighbours, drawn again and again from one known law."""
    source, texts, tokens, kept = np.random.default_rng(4), 120, 64 * BLOCK_TOKENS, 0.8
    held = 0
    for seed in range(texts):
        noise = source.normal(0, np.sqrt(1 - kept**2), tokens)
        noise[0] = source.normal()
        for place in range(1, tokens):
            noise[place] += kept * noise[place - 1]
        found = interval(lambda at, of=noise: float(np.exp(2 + of[at].mean())), tokens, draw([tokens], seed))
        held += found.low <= math.exp(2) <= found.high
    assert 0.87 <= held / texts <= 0.99  # 0.95 with blocks that were alike all the way
