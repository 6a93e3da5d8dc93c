"""Scales of w4a16's form without a search: what found ones are compared with."""

import numpy as np

from engine.compile.quantisation.methods.blocks import Float32
from engine.compile.quantisation.rounding.codes import BlockScales
from engine.compile.quantisation.rounding.gptq import MULTIPLES, units_of


def nearest_multiples(wanted: Float32, block: int) -> BlockScales:
    """Scales >= 0 [outputs, blocks] moved to the nearest multiple, 1..16, of a 16th of each output's largest."""
    units = units_of(wanted)[:, None]
    multiples = np.clip(np.rint(wanted / units), 1, MULTIPLES).astype(np.float32)
    return BlockScales(multiples * units, None, block)
