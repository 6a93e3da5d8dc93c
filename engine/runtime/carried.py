"""What graphs of one sequence carry from run to run: past columns, windows of columns, recurrent states.

Legend: K = KV heads, D = head size, N = rows of a run, P = past columns, W = columns of a window.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import TensorSpec
from engine.bundle.serial import IN, KEYS, OUT, WINDOWS
from engine.bundle.tensors import Array, Carry, carry_of
from engine.runtime.sessions import Binding


def token_of_column(columns: int, tokens: int) -> NDArray[np.int64]:
    """[W]: which token lies in each column of a window after so many tokens; negative = none."""
    return tokens - 1 - (tokens - 1 - np.arange(columns)) % columns


class CarriedState:
    """All that one sequence carries after `tokens` tokens, in the layout of one shape's graphs.

    A token's keys and values lie in past column `token`, and in window column `token` modulo W. bound: the graphs bound
    to this memory, dropped when it moves.
    """

    def __init__(self, specs: Mapping[str, TensorSpec], tokens: int = 0) -> None:
        self.tokens = tokens
        self.arrays = {name: _empty(spec) for name, spec in specs.items()}
        self.bound: list[Binding] = []
        self.bound_to: object = None

    def fits(self, specs: Mapping[str, TensorSpec]) -> bool:
        """Whether it is laid out for these graphs."""
        return all(self.arrays[name].shape == spec.shape for name, spec in specs.items())

    def lay_out(self, specs: Mapping[str, TensorSpec]) -> None:
        """Move to the layout of other graphs; tokens that their columns cannot hold are lost."""
        for name, spec in specs.items():
            old, carry = self.arrays[name], carry_of(name, IN)
            if old.shape == spec.shape:
                continue
            new = _empty(spec)
            axis = 3 if carry in KEYS else 2
            there, here = _moved(old.shape[axis], new.shape[axis], self.tokens, carry in WINDOWS)
            _columns(new, axis)[here] = _columns(old, axis)[there]
            self.arrays[name] = new
        self.bound, self.bound_to = [], None

    def take(self, fresh: Mapping[str, Array], count: int) -> None:
        """Carry on what a run gave for its last `count` rows, by the names of its outputs."""
        for name, array in self.arrays.items():
            given, carry = fresh[name.removesuffix(IN) + OUT], carry_of(name, IN)
            if carry is Carry.STATE:
                np.copyto(array, given)
                continue
            axis = 3 if carry in KEYS else 2
            width, first = array.shape[axis], given.shape[axis] - count
            tokens = np.arange(self.tokens, self.tokens + count)
            if carry in WINDOWS:
                tokens = tokens[-width:]
            rows = tokens - self.tokens + first
            _columns(array, axis)[tokens % width if carry in WINDOWS else tokens] = _columns(given, axis)[rows]
        self.tokens += count


def _columns(array: Array, axis: int) -> Array:
    """A view whose first axis is the columns."""
    return np.moveaxis(array, axis, 0)


def _empty(spec: TensorSpec) -> Array:
    return np.full([int(dim) for dim in spec.shape], spec.zero_point or 0, np.dtype(spec.dtype))


def _moved(old: int, new: int, tokens: int, is_window: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Columns of the old layout, and those of the new one that their tokens go to."""
    if not is_window:
        shared = np.arange(min(old, new, tokens))
        return shared, shared
    kept = np.arange(max(0, tokens - min(old, new)), tokens)
    return kept % old, kept % new
