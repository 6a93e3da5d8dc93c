"""Codes of a matrix in the form that its method stores, chosen on inputs of two streams: chosen codes and floats.

With x of the chosen stream, y of the float one and d what the float stream is ahead by where the outputs are added:
the best any matrix W' can do in place of W on x is least squares, min over W' of |x W'ᵀ - (y Wᵀ + d)|², which is
W' = W + (W Σ (y - x)ᵀ x + Σ dᵀ x) (Σ xᵀ x)⁻¹. So codes are chosen for W', and what earlier layers lost is made up for
as far as this layer can. A ridge keeps W' at W where text says little.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from engine.compile.arguments import CompileArguments
from engine.compile.quantisation.methods.blocks import Float32, Float64, Floats
from engine.compile.quantisation.methods.integer_graphs import int4_columns
from engine.compile.quantisation.methods.method import Method
from engine.compile.quantisation.rounding import codes as rounding
from engine.compile.quantisation.rounding import gptq
from engine.compile.quantisation.rounding.codes import BlockCodes, Coding
from engine.compile.quantisation.rounding.refinement import Curvature, refined


@dataclass(frozen=True, slots=True)
class Streams:
    """Of each text a matrix [tokens, width]: as the chosen codes give it, and as the checkpoint's floats do."""

    chosen: list[Float32]
    floats: list[Float32]

    def each(
        self, of_chosen: Callable[..., Float32], of_floats: Callable[..., Float32], *others: "Streams"
    ) -> "Streams":
        """What a step of each side makes of each text, and of the same text in other streams."""
        chosen = [of_chosen(*texts) for texts in zip(self.chosen, *(other.chosen for other in others), strict=True)]
        floats = [of_floats(*texts) for texts in zip(self.floats, *(other.floats for other in others), strict=True)]
        return Streams(chosen, floats)


@dataclass(frozen=True, slots=True)
class Linear:
    """A stacked matrix [outputs, inputs] and what its codes stand for; its bias [outputs], 0 where it has none."""

    weight: Float32
    coded: Float32
    bias: Float32

    def then(self, inputs: Streams, step: Callable[..., Float32], *others: Streams) -> Streams:
        """`step` of each product and the same text in other streams; one product is in memory at a time."""

        def with_weight(weight: Float32) -> Callable[..., Float32]:
            return lambda x, *rest: step(x @ weight.T + self.bias, *rest)

        return inputs.each(with_weight(self.coded), with_weight(self.weight), *others)


RIDGE = 0.03  # of the mean diagonal of Σ xᵀ x, at least
SCARCE = 0.7  # the same, times inputs for each token: with few tokens least squares learns their noise


Addition = tuple[Float32, Streams]  # a matrix [outputs, inputs] alone of its inputs, and what its outputs are added to


@dataclass(frozen=True, slots=True)
class SharedInputs:
    """hessian: 2 Σ xᵀ x; factor, curvature: of it. solved: correction [inputs, inputs], Σ (y - x)ᵀ x (Σ xᵀ x)⁻¹, or, of
    the one matrix whose outputs are added to a stream (is_added), in its place W' - W [outputs, inputs]."""

    hessian: Float64
    factor: gptq.Factor
    curvature: Curvature
    solved: Float32
    is_added: bool

    @classmethod
    def measured(cls, inputs: Streams, block: int, addition: Addition | None = None) -> "SharedInputs":
        """CompileError for inputs that are not finite."""
        width = inputs.chosen[0].shape[1]
        statistics = rounding.InputStatistics(width)
        lag = np.zeros((width if addition is None else len(addition[0]), width), np.float32)
        for x, behind in _behind(inputs, addition):
            statistics.add(x)
            lag += behind.T @ x
        hessian = statistics.hessian
        damping = rounding.damping_of(width, statistics.rows)
        factor = gptq.factorised(hessian, block, damping=damping)
        solved = _times_inverse(hessian, lag, ridge_of(width, statistics.rows))
        return cls(hessian, factor, Curvature.of(hessian, block, damping), solved, addition is not None)

    def target(self, weight: Float32) -> Float32:
        """W' of W [outputs, inputs]: of any matrix, or of the one whose outputs are added."""
        return weight + (self.solved if self.is_added else weight @ self.solved)


def ridge_of(inputs: int, tokens: int) -> float:
    """The share of the mean diagonal that is added to it."""
    return max(RIDGE, SCARCE * inputs / tokens)


def _behind(inputs: Streams, addition: Addition | None) -> Iterator[tuple[Float32, Float32]]:
    """Runs of x, and what they are behind by: y - x, or where outputs are added (y - x) Wᵀ + d."""
    if addition is None:
        for x, y in zip(rounding.in_runs(inputs.chosen), rounding.in_runs(inputs.floats), strict=True):
            yield x, np.subtract(y, x)
        return
    weight, streams = addition
    texts = (inputs.chosen, inputs.floats, streams.chosen, streams.floats)
    for x, y, chosen, floats in zip(*map(rounding.in_runs, texts), strict=True):
        behind = (y - x) @ weight.T
        behind += floats
        behind -= chosen
        yield x, behind


def _times_inverse(hessian: Float64, matrix: Float32, ridge: float) -> Float32:
    """matrix [rows, inputs] times the inverse of Σ xᵀ x with its ridge; 0 where all inputs were 0."""
    products = (hessian / 2).astype(np.float32)
    mean = float(np.trace(products)) / len(products)
    if mean == 0:
        return np.zeros_like(matrix)
    products[np.diag_indices_from(products)] += np.float32(ridge * mean)
    return np.ascontiguousarray(np.linalg.solve(products, matrix.T).T)


@dataclass(frozen=True, slots=True)
class CodeForm:
    """block: inputs that share a scale. has_multiples: LPBQ. in_half: scales are stored in half precision. has_rows:
    all inputs share one, and codes have 8 bits."""

    block: int
    coding: Coding
    has_multiples: bool = False
    in_half: bool = False
    has_rows: bool = False

    @classmethod
    def of(cls, method: Method, arguments: CompileArguments) -> "CodeForm | None":
        """Of a method of quantisation; None when there is nothing to choose in it."""
        choice, coding = (method.choice, Coding.ASYMMETRIC if arguments.asymmetric else Coding.SYMMETRIC)
        if choice is None:
            return None
        coding = Coding.OFFSET if choice.has_offsets else Coding.POSITIVE if choice.has_multiples else coding
        return cls(arguments.block, coding, choice.has_multiples, choice.in_half, choice.has_rows)

    def stored(self, scales: Float32) -> Float32:
        """Where they are half precision, scales that lose nothing by it, but for those that leave its range."""
        if not self.in_half:
            return scales
        with np.errstate(over="ignore", under="ignore"):
            halves = scales.astype(np.float16).astype(np.float32)
        return np.where(np.isfinite(halves) & (np.abs(halves) > rounding.TINY), halves, scales)


@dataclass(frozen=True, slots=True)
class OutputError:
    """Squared errors of outputs, summed: rounded to nearest, as chosen; and the squares of the outputs themselves."""

    nearest: float = 0.0
    chosen: float = 0.0
    outputs: float = 0.0

    def __add__(self, other: "OutputError") -> "OutputError":
        return OutputError(self.nearest + other.nearest, self.chosen + other.chosen, self.outputs + other.outputs)


def choose_codes(weight: Float32, inputs: SharedInputs, form: CodeForm) -> tuple[BlockCodes, OutputError]:
    """[outputs, inputs]: by GPTQ with searched scales, then refined; rows that lose less by rounding are rounded. Of 8
    bits nothing is searched or refined: what they lose is the sum of small things that are all alike."""
    target = inputs.target(weight)
    plain = nearest(weight, form)
    found = compensated_codes(target, inputs.factor, form)
    if not form.has_rows:
        found = refined(target, found, inputs.curvature, form.has_multiples, form.stored)
    before, after = (rounding.output_errors(target, codes.floats(), inputs.hessian) for codes in (plain, found))
    size = rounding.output_errors(weight, np.zeros_like(weight), inputs.hessian)
    error = OutputError(float(before.sum()), float(np.minimum(before, after).sum()), float(size.sum()))
    return gptq.picked_rows(after < before, found, plain), error


def compensated_codes(weight: Float32, factor: gptq.Factor, form: CodeForm) -> BlockCodes:
    """[outputs, inputs] by GPTQ with scales searched as blocks are reached, or one for each row."""
    if form.has_rows:
        return gptq.compensated_rows(weight, factor)
    if form.has_multiples:
        grid = gptq.searched_multiples(weight, form.block, factor.of_inputs()[: weight.shape[1]])
        return gptq.compensated_searching(weight, factor, gptq.choosing_multiples(grid), form.coding)

    def choose(values: Floats, importance: Floats, _: int) -> tuple[Float32, Float32]:
        scales, zeros = gptq.search_block(values, importance, form.coding)
        return form.stored(scales), zeros

    return gptq.compensated_searching(weight, factor, choose, form.coding)


def nearest(weight: Float32, form: CodeForm) -> BlockCodes:
    """[outputs, inputs] as it is stored where nothing is chosen. CompileError when LPBQ blocks do not come out even."""
    if form.has_rows:
        return rounding.rounded_rows(weight)
    if form.has_multiples:
        return int4_columns(weight, form.block)
    grid = rounding.extreme_scales(weight, form.block, form.coding)
    return rounding.rounded(weight, replace(grid, scales=form.stored(grid.scales)))
