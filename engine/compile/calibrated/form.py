"""The form in which a method of quantisation stores 4-bit codes, and the best codes of a matrix in it."""

from dataclasses import dataclass

import numpy as np

from engine.compile.arguments import CompileArguments
from engine.compile.quantization.blocks import Float32
from engine.compile.quantization.method import Method
from engine.compile.rounding.codes import TINY, BlockCodes, BlockScales, Coding, Floats, extreme_scales, rounded
from engine.compile.rounding.gptq import (
    ChooseScales,
    ColumnOrder,
    Factor,
    better_rows,
    compensated_searching,
    factorised,
    searching,
)
from engine.compile.rounding.hessian import Float64
from engine.compile.rounding.lpbq import choosing_multiples, nearest_multiples, reaching_scales, searched_multiples
from engine.compile.rounding.scale_search import searched_scales


@dataclass(frozen=True, slots=True)
class CodeForm:
    """block: inputs that share a scale. has_multiples: LPBQ. in_half: scales are stored in half precision."""

    block: int
    coding: Coding
    has_multiples: bool = False
    in_half: bool = False

    @classmethod
    def of(cls, method: Method, arguments: CompileArguments) -> "CodeForm | None":
        """Of a method of quantisation; None when there is nothing to choose in it."""
        if method.choice is None:
            return None
        coding = Coding.ASYMMETRIC if arguments.asymmetric else Coding.SYMMETRIC
        if method.choice.has_multiples:
            coding = Coding.POSITIVE
        return cls(arguments.block, coding, method.choice.has_multiples, method.choice.in_half)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What matrices that read the same inputs share: the Hessian and its factor."""

    hessian: Float64
    factor: Factor

    @classmethod
    def of(cls, hessian: Float64, block: int) -> "Inputs":
        """CompileError when the Hessian has no factor."""
        return cls(hessian, factorised(hessian, block, order=ColumnOrder.NATURAL))


def chosen(weight: Float32, inputs: Inputs, form: CodeForm) -> BlockCodes:
    """[outputs, inputs]: row by row the better one of GPTQ and searched scales with codes rounded to nearest."""
    importance = np.diagonal(inputs.hessian) + 0.01 * np.trace(inputs.hessian) / len(inputs.hessian)
    if form.has_multiples:
        grid = searched_multiples(weight, form.block, importance)
        choose = choosing_multiples(grid)
    else:
        grid = _stored(searched_scales(weight, form.block, form.coding, importance), form)
        choose = _storable(searching(form.coding), form)
    compensated = compensated_searching(weight, inputs.factor, choose, form.coding)
    return better_rows(weight, compensated, rounded(weight, grid), inputs.hessian)


def nearest(weight: Float32, form: CodeForm) -> BlockCodes:
    """[outputs, inputs] as they are rounded where nothing is chosen."""
    if form.has_multiples:
        return rounded(weight, nearest_multiples(reaching_scales(weight, form.block), form.block))
    return rounded(weight, _stored(extreme_scales(weight, form.block, form.coding), form))


def _stored(grid: BlockScales, form: CodeForm) -> BlockScales:
    return BlockScales(_halves(grid.scales), grid.zeros, grid.block) if form.in_half else grid


def _storable(choose: ChooseScales, form: CodeForm) -> ChooseScales:
    if not form.in_half:
        return choose

    def halved(values: Floats, importance: Floats, block: int) -> tuple[Float32, Float32]:
        scales, zeros = choose(values, importance, block)
        return _halves(scales), zeros

    return halved


def _halves(scales: Float32) -> Float32:
    """Scales that lose nothing when they are stored in half precision, unless they leave its range."""
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16).astype(np.float32)
    return np.where(np.isfinite(halves) & (np.abs(halves) > TINY), halves, scales)
