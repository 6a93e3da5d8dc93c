"""The form in which a method of quantisation stores 4-bit codes, and the best codes of a matrix in it."""

from dataclasses import dataclass

import numpy as np

from engine.compile.arguments import CompileArguments
from engine.compile.calibrated.statistics import SharedInputs
from engine.compile.quantization.blocks import INT4_MIDDLE, Float32
from engine.compile.quantization.method import Method
from engine.compile.quantization.w4a16 import int4_columns
from engine.compile.rounding.codes import TINY, BlockCodes, BlockScales, Coding, Floats, extreme_scales, rounded
from engine.compile.rounding.gptq import ChooseScales, Factor, compensated_searching, picked_rows, searching
from engine.compile.rounding.hessian import output_errors
from engine.compile.rounding.lpbq import choosing_multiples, searched_multiples
from engine.compile.rounding.refinement import refined


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
class OutputError:
    """Squared errors of outputs, summed: rounded to nearest, as chosen; and the squares of the outputs themselves."""

    nearest: float = 0.0
    chosen: float = 0.0
    outputs: float = 0.0

    def __add__(self, other: "OutputError") -> "OutputError":
        return OutputError(self.nearest + other.nearest, self.chosen + other.chosen, self.outputs + other.outputs)


def choose_codes(weight: Float32, inputs: SharedInputs, form: CodeForm) -> tuple[BlockCodes, OutputError]:
    """[outputs, inputs]: by GPTQ with searched scales, then refined; rows that lose less by rounding are rounded."""
    target = inputs.target(weight)
    plain = nearest(weight, form)
    found = compensated_codes(target, inputs.factor, form)
    stored = _halves if form.in_half else _as_they_are
    found = refined(target, found, inputs.curvature, form.has_multiples, stored)
    before, after = (output_errors(target, codes.floats(), inputs.hessian) for codes in (plain, found))
    size = output_errors(weight, np.zeros_like(weight), inputs.hessian)
    error = OutputError(float(before.sum()), float(np.minimum(before, after).sum()), float(size.sum()))
    return picked_rows(after < before, found, plain), error


def compensated_codes(weight: Float32, factor: Factor, form: CodeForm) -> BlockCodes:
    """[outputs, inputs] by GPTQ with scales searched as blocks are reached."""
    return compensated_searching(weight, factor, _scales(weight, factor, form), form.coding)


def nearest(weight: Float32, form: CodeForm) -> BlockCodes:
    """[outputs, inputs] as it is stored where nothing is chosen. CompileError when LPBQ blocks do not come out even."""
    if form.has_multiples:
        return _as_columns(weight, form.block)
    grid = extreme_scales(weight, form.block, form.coding)
    return rounded(weight, BlockScales(_halves(grid.scales), grid.zeros, grid.block) if form.in_half else grid)


def _as_columns(weight: Float32, block: int) -> BlockCodes:
    columns = int4_columns(weight, block)
    codes = (columns.integers + np.int8(INT4_MIDDLE)).astype(np.uint8).reshape(len(weight), -1, block)
    return BlockCodes(codes, BlockScales(columns.scales, None, block), weight.shape[1])


def _scales(target: Float32, factor: Factor, form: CodeForm) -> ChooseScales:
    if form.has_multiples:
        return choosing_multiples(searched_multiples(target, form.block, factor.of_inputs()[: target.shape[1]]))
    choose = searching(form.coding)
    if not form.in_half:
        return choose

    def halved(values: Floats, importance: Floats, block: int) -> tuple[Float32, Float32]:
        scales, zeros = choose(values, importance, block)
        return _halves(scales), zeros

    return halved


def _as_they_are(scales: Float32) -> Float32:
    return scales


def _halves(scales: Float32) -> Float32:
    """Scales that lose nothing when they are stored in half precision, but for those that leave its range."""
    with np.errstate(over="ignore", under="ignore"):
        halves = scales.astype(np.float16).astype(np.float32)
    return np.where(np.isfinite(halves) & (np.abs(halves) > TINY), halves, scales)
