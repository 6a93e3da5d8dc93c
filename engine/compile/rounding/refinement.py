"""Scales and codes of a matrix made better, given what its inputs were; a row is never made worse."""

from collections.abc import Callable

from engine.compile.quantization.blocks import Float32
from engine.compile.rounding.code_state import CodeState, Curvature
from engine.compile.rounding.codes import BlockCodes

StoreScales = Callable[[Float32], Float32]  # scales [outputs, blocks] as they will be stored


def refined(weight: Float32, codes: BlockCodes, curvature: Curvature, one_unit: bool, store: StoreScales) -> BlockCodes:
    """[outputs, inputs]: new scales, then each code by itself. Once: a second time learns the noise of scarce text.

    one_unit: all scales of an output keep their ratios (LPBQ). A row whose error is not less with new scales, as they
    are stored, keeps the ones it has.
    """
    state = CodeState(weight, codes, curvature)
    state.rescale(store(state.common_factor() if one_unit else state.best_scales()))
    state.descend()
    return state.codes
