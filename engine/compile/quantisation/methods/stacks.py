"""The matrices of experts, one behind the other, as the operators for experts read them.

QMoE reads codes [count, outputs, inputs * bits / 8] and scales [count, outputs, blocks]; MoE reads floats [count,
outputs, inputs]. Rows of gate and up take turns in their matrix (onnxruntime's contrib operators, `swiglu_fusion` 1).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.compile.quantisation.methods.blocks import BlockForm, Blocks, Float32
from engine.compile.quantisation.methods.integer_blocks import as_int4_blocks, int8_blocks
from engine.compile.quantisation.methods.method import Pieces, StackForm

Values = NDArray[Any]


@dataclass(frozen=True, slots=True)
class StackRows:
    """A matrix [outputs, inputs] as the operator reads it, or rows of it that take turns with others."""

    weight: Values
    scales: Float32 | None = None
    zeros: Values | None = None


def stored_rows(form: StackForm, pieces: Pieces) -> StackRows:
    """A matrix, or two whose rows take turns."""
    parts = [_one(form, piece) for piece in pieces]
    if len(parts) == 1:
        return parts[0]
    first, second = parts
    scales, zeros = (first.scales, second.scales), (first.zeros, second.zeros)
    return StackRows(in_turns(first.weight, second.weight), _both(*scales), _both(*zeros))


def _one(form: StackForm, piece: Float32 | Blocks) -> StackRows:
    if not form.block:
        assert isinstance(piece, np.ndarray)
        return StackRows(piece)
    if form.bits == 8:
        eight = int8_blocks(piece, _inputs(piece))
        return StackRows(eight.codes.reshape(len(eight.codes), -1), eight.scales)
    four = as_int4_blocks(piece, _inputs(piece), BlockForm(4, form.block, form.asymmetric))
    return StackRows(four.stored().reshape(len(four.codes), -1), four.scales, four.stored_points())


def in_turns(first: Values, second: Values) -> Values:
    """The first row of one, the first of the other, the second of one, and so on."""
    return np.stack((first, second), axis=1).reshape(-1, *first.shape[1:])


def _inputs(piece: Float32 | Blocks) -> int:
    return int(piece.shape[1] if isinstance(piece, np.ndarray) else piece.scales.shape[1] * piece.block)


def _both(first: Values | None, second: Values | None) -> Values | None:
    return None if first is None or second is None else in_turns(first, second)
