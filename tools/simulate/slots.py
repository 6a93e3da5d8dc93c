"""Fused graphs with decode slots under the server's own scheduler: which shapes there are and what a step costs."""

from dataclasses import replace

import numpy as np

from engine.bundle.specs import SPARE_SLOTS
from engine.bundle.variant import StepShape, slot_table
from engine.config import EngineConfig
from tools.simulate.continuous import Continuous
from tools.simulate.prices import Prices


def slot_prices(prices: Prices, slots: int) -> Prices:
    """The variants as fused graphs of `slots` slots: those with rows for a prompt, all slots without one, one decode.

    All have the narrowest past. A graph reads all its caches, used or not: each beyond the first costs `slot_ms`.
    ValueError when no variant has rows for a prompt.
    """
    by_rows: dict[int, float] = {}
    for shape, milliseconds in sorted(prices.milliseconds.items()):
        by_rows.setdefault(shape.rows, milliseconds)
    past = min(shape.past for shape in prices.shapes.fixed)
    rows = {1, slots, *(count for count in by_rows if count > slots)}
    if max(rows) == slots:
        raise ValueError(f"--slots {slots} leave no rows for a prompt: the widest variant has {max(by_rows)}")
    times = {}
    for count in sorted(rows):
        caches = min(count, slots) + (count > slots)
        run_ms = float(np.interp(count, list(by_rows), list(by_rows.values())))
        times[StepShape(count, past)] = run_ms + prices.slot_ms * (caches - 1)
    return replace(prices, shapes=slot_table(rows, past, slots), milliseconds=times)


def slot_policy(prices: Prices, slots: int, config: EngineConfig) -> Continuous:
    """One prompt and up to `slots` decodes a step, in turns. Every running request has a cache of all KV slots."""
    priced = slot_prices(prices, slots)
    cache = priced.shapes.max_past - SPARE_SLOTS
    return Continuous(priced, replace(config, kv_slots=config.max_running * cache))
