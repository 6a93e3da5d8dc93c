"""Codes and scales of a matrix made better in turns, given what its inputs were; no turn can make a row worse."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.compile.quantization.blocks import Float32
from engine.compile.rounding.code_state import CodeState, Curvature
from engine.compile.rounding.codes import BlockCodes
from engine.compile.rounding.pair_moves import move_pairs, partners_of

StoreScales = Callable[[Float32], Float32]  # scales [outputs, blocks] as they will be stored


@dataclass(frozen=True, slots=True)
class Effort:
    """rounds: how often new scales and then each code by itself; sweeps: how often, behind them, new scales and then
    codes in pairs; partners: with how many other columns each is tried. again: all of it once more from other codes,
    those of another order of columns, and the better result of each row is taken."""

    rounds: int
    sweeps: int
    partners: int
    again: bool

    @property
    def all_rounds(self) -> int:
        """Of both."""
        return self.rounds * (1 + self.again)

    @property
    def all_sweeps(self) -> int:
        """Of both, and the one over the better rows of both."""
        return self.sweeps * (1 + self.again) + self.again


USUAL = Effort(rounds=1, sweeps=0, partners=0, again=False)  # a second learns noise of scarce text
THOROUGH = Effort(rounds=1, sweeps=3, partners=128, again=True)


def refined(
    weight: Float32, codes: BlockCodes, curvature: Curvature, effort: Effort, one_unit: bool, store: StoreScales
) -> BlockCodes:
    """[outputs, inputs]. one_unit: all scales of an output keep their ratios (LPBQ).

    A row whose error is not less with new scales, as they are stored, keeps the ones it has.
    """
    state = CodeState(weight, codes, curvature)
    partners = partners_of(curvature.hessian, effort.partners) if effort.sweeps else None
    for turn in range(effort.rounds + effort.sweeps):
        state.rescale(store(state.common_factor() if one_unit else state.best_scales()))
        if partners is None or turn < effort.rounds:
            state.descend()
        else:
            move_pairs(state, partners)
    return state.codes
