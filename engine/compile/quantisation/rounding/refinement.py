"""Scales and codes of a matrix made better, given what its inputs were; a row is never made worse.

With all other codes as they are, the output error e H eᵀ of a row's e = weight - (code - zero) * scale is a parabola in
one weight, and its best code is the one nearest to the parabola's lowest place (coordinate descent as in QuantEase,
Behdin et al. 2023). With codes as they are, the error is a quadratic form in the row's scales, whose lowest place is
the solution of a small linear system.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.compile.quantisation.methods.blocks import INT4_MIDDLE, Float32, Float64, Floats
from engine.compile.quantisation.rounding.codes import DAMPING, HIGHEST, TINY, BlockCodes, damped, in_blocks

PULL = np.float32(1e-3)  # towards the scale that was: decides for blocks that text says nothing of
SOLVED = 128  # outputs whose scales are solved at once: their products stay in a processor's cache
DESCENDED = 256  # columns after which all gradients follow: fewer would wait for memory


@dataclass(frozen=True, slots=True)
class Curvature:
    """H that all matrices share which read the same inputs. hessian [columns, columns]: damped, with whole blocks."""

    hessian: Float32
    block: int

    @classmethod
    def of(cls, hessian: Float64, block: int, damping: float = DAMPING) -> "Curvature":
        """Of H [inputs, inputs]."""
        return cls(damped(hessian, damping, block).astype(np.float32), block)


class CodeState:
    """One matrix, its columns [columns, outputs] first; what changes it makes no row worse. steps: code - zero
    [columns, outputs]. scales [blocks, outputs]. gradients: H e, half the error's gradient with its sign turned."""

    def __init__(self, weight: Float32, codes: BlockCodes, curvature: Curvature) -> None:
        self.curvature = curvature
        self._given = codes
        self._zeros = _zeros(codes)
        self.steps = _columns(codes.codes) - self._zeros
        self.scales = np.ascontiguousarray(codes.grid.scales.T)
        self._target = _columns(in_blocks(weight, codes.grid.block))
        self._wanted = curvature.hessian @ self._target
        self.gradients = self._gradients_of(self._values(self.scales))

    @property
    def codes(self) -> BlockCodes:
        found = np.ascontiguousarray(np.rint(self.steps + self._zeros).T).astype(np.uint8)
        grid = replace(self._given.grid, scales=np.ascontiguousarray(self.scales.T))
        return replace(self._given, codes=found.reshape(self._given.codes.shape), grid=grid)

    def best_scales(self) -> Float32:
        """[outputs, blocks]: of the least error for the codes as they are."""
        found = np.concatenate([self._solved(slice(at, at + SOLVED)) for at in range(0, self.scales.shape[1], SOLVED)])
        return np.where(np.isfinite(found) & (np.abs(found) > TINY), found, self.scales.T)

    def common_factor(self) -> Float32:
        """[outputs, blocks]: the scales as they are, times the best factor of each output."""
        values = self._values(self.scales)
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = _dots(values, self._wanted) / _dots(values, self._wanted - self.gradients)
        usable = np.isfinite(factors) & (factors > 0)
        return np.ascontiguousarray((self.scales * np.where(usable, factors, 1).astype(np.float32)).T)

    def rescale(self, scales: Float32) -> None:
        """Take the scales [outputs, blocks] where the error is less with them."""
        new = np.ascontiguousarray(scales.T)
        values = self._values(new)
        gradients = self._gradients_of(values)
        before = _dots(self._target - self._values(self.scales), self.gradients)
        is_better = _dots(self._target - values, gradients) < before
        self.scales = np.where(is_better, new, self.scales)
        self.gradients = np.where(is_better, gradients, self.gradients)

    def descend(self) -> None:
        """Every code once, a column after the other, all outputs side by side."""
        block, hessian = self.curvature.block, self.curvature.hessian
        columns = len(hessian)
        run = max(1, DESCENDED // block) * block
        for start in range(0, columns, run):
            end = min(start + run, columns)
            gradients = self.gradients[start:end].copy()
            changes = np.empty_like(gradients)
            for first in range(start, end, block):
                part, inner = slice(first, first + block), slice(first - start, first - start + block)
                changes[inner] = self._block_changes(part, self.scales[first // block], gradients[inner])
                gradients[inner.stop :] -= hessian[part.stop : end, part] @ changes[inner]
            self.gradients -= hessian[:, start:end] @ changes

    def _block_changes(self, part: slice, scales: Float32, gradients: Float32) -> Float32:
        """New codes of one block; the changes of its weights [block, outputs]. Overwrites its gradients."""
        inner = self.curvature.hessian[part, part]
        steps, zeros = self.steps[part], self._zeros[part]
        changes = np.empty_like(gradients)
        reciprocals = np.float32(1) / scales
        for column in range(len(steps)):
            wanted = steps[column] + gradients[column] * (reciprocals / inner[column, column])
            found = np.clip(np.rint(wanted + zeros[column]), 0, HIGHEST) - zeros[column]
            changes[column] = (found - steps[column]) * scales
            steps[column] = found
            gradients[column + 1 :] -= inner[column + 1 :, column, None] * changes[column]
        return changes

    def _solved(self, part: slice) -> Float32:
        """Best scales of some outputs [some, blocks]."""
        hessian, steps = self.curvature.hessian, np.ascontiguousarray(self.steps[:, part])
        blocks, given = len(self.scales), self.scales[:, part].T
        left = np.empty((steps.shape[1], blocks, blocks), np.float32)
        for index in range(blocks):  # and, as H is symmetric, the blocks behind it
            start = index * self.curvature.block
            rows = slice(start, start + self.curvature.block)
            sums = self._block_sums((hessian[start:, rows] @ steps[rows]) * steps[start:])
            left[:, index, index:] = left[:, index:, index] = sums
        right = self._block_sums(self._wanted[:, part] * steps)
        pull = PULL * np.einsum("obb->ob", left) + TINY
        left[:, range(blocks), range(blocks)] += pull
        return np.asarray(np.linalg.solve(left, (right + pull * given)[:, :, None])[:, :, 0], np.float32)

    def _block_sums(self, products: Float32) -> Float32:
        """[columns, some] summed over the columns of each block: [some, blocks of these]."""
        return np.asarray(products.reshape(-1, self.curvature.block, products.shape[1]).sum(axis=1).T)

    def _values(self, scales: Float32) -> Float32:
        return self.steps * np.repeat(scales, self.curvature.block, axis=0)

    def _gradients_of(self, values: Float32) -> Float32:
        return np.asarray(self._wanted - self.curvature.hessian @ values)


def _columns(blocks: Floats | NDArray[np.uint8]) -> Float32:
    """[outputs, blocks, block] as [columns, outputs]."""
    return np.ascontiguousarray(blocks.reshape(len(blocks), -1).T, np.float32)


def _zeros(codes: BlockCodes) -> Float32:
    """[columns, outputs], or [columns, 1] where all are the middle."""
    zeros, block = codes.grid.zeros, codes.grid.block
    if zeros is None:
        return np.full((codes.grid.scales.shape[1] * block, 1), INT4_MIDDLE, np.float32)
    return np.repeat(np.ascontiguousarray(zeros.T, np.float32), block, axis=0)


def _dots(left: Float32, right: Float32) -> Float64:
    """[outputs]: the product of each column of both."""
    return np.asarray(np.einsum("co,co->o", left, right, dtype=np.float64))


StoreScales = Callable[[Float32], Float32]  # scales [outputs, blocks] as they will be stored


def refined(weight: Float32, codes: BlockCodes, curvature: Curvature, one_unit: bool, store: StoreScales) -> BlockCodes:
    """[outputs, inputs]: new scales, then each code by itself. Once: a second time learns the noise of scarce text.
    one_unit: all scales of an output keep their ratios (LPBQ). A row whose error is not less with new scales, as they
    are stored, keeps the ones it has."""
    state = CodeState(weight, codes, curvature)
    state.rescale(store(state.common_factor() if one_unit else state.best_scales()))
    state.descend()
    return state.codes
