"""A checkpoint whose tensors are changed as they are read: one matrix in memory at most."""

import numpy as np

from engine.compile.quantisation.methods.blocks import BlockForm, Blocks
from engine.compile.quantisation.transforms.rotation import Edits, Float64, LinearEdit
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.errors import CompileError

WEIGHT, BIAS = ".weight", ".bias"
_CHUNK_ITEMS = 1 << 21  # numbers in double precision at once


class TransformedCheckpoint(Checkpoint):
    """As `inner` with `edits` applied. norm_offset: added to the stored scale of every norm."""

    def __init__(self, inner: Checkpoint, edits: Edits, norm_offset: float = 0.0) -> None:
        self.inner = inner
        self._edits = edits
        self._offset = norm_offset
        self._turned: tuple[str, Float32] | None = None  # the last matrix whose rows all depend on all

    @property
    def edits(self) -> Edits:
        """What is changed of `inner`."""
        return self._edits

    def __contains__(self, name: str) -> bool:
        return self._stored(name) in self.inner

    def total_bytes(self) -> int:
        """Bytes of all float tensors as stored; a tensor that two are made of counts twice."""
        return self.inner.total_bytes() + sum(self.stored_bytes(f"{name}{WEIGHT}") for name in self._made())

    def unused(self) -> list[str]:
        """Names of the tensors that nothing has asked for yet. One in whose place another is read counts as used."""
        replaced = {f"{name}{WEIGHT}" for name in self._made()}
        return [name for name in self.inner.unused() if name not in replaced]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.inner.shape(self._stored(name))

    def stored_bytes(self, name: str) -> int:
        return self.inner.stored_bytes(self._stored(name))

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        self.inner.require(self._stored(name), shape)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        self.require(name, shape)
        if self._linear(name, WEIGHT) is not None:
            return self.rows(name, 0, shape[0])
        values = self.inner.tensor(self._stored(name), shape)
        bias = self._linear(name, BIAS)
        if bias is not None:
            return _single(bias.outputs(values.astype(np.float64), 0))
        if (module := name.removesuffix(WEIGHT)) not in self._edits.norms:
            return values
        factors = self._edits.norms[module]
        scale = np.ones(shape) if factors is None else (values.astype(np.float64) + self._offset) * factors
        return _single(scale - self._offset)

    def rows(self, name: str, start: int, stop: int) -> Float32:
        edit = self._linear(name, WEIGHT)
        if edit is None:
            return self.inner.rows(name, start, stop)
        outputs = self.shape(name)[0]
        low, high = edit.bounds(start, stop, outputs)
        if edit.output_rotation is None or high - low < outputs:
            return self._changed(name, edit, low, high)[start - low : stop - low]
        if self._turned is None or self._turned[0] != name:
            self._turned = None  # let go before the next is made
            self._turned = name, self._changed(name, edit, 0, outputs)
        return self._turned[1][start:stop]

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        """The same rows as stored blocks; None where they are changed."""
        return self.inner.blocks(name, start, stop) if self._linear(name, WEIGHT) is None else None

    def form(self, name: str) -> BlockForm | None:
        """What `blocks` of a matrix have in common; None where it is changed."""
        return self.inner.form(name) if self._linear(name, WEIGHT) is None else None

    def _linear(self, name: str, suffix: str) -> LinearEdit | None:
        return self._edits.linears.get(name.removesuffix(suffix)) if name.endswith(suffix) else None

    def _stored(self, name: str) -> str:
        edit = self._linear(name, WEIGHT)
        return f"{edit.source}{WEIGHT}" if edit is not None and edit.source else name

    def _made(self) -> list[str]:
        """Modules made of a matrix that stands under another name."""
        return [name for name, edit in self._edits.linears.items() if edit.source]

    def _changed(self, name: str, edit: LinearEdit, low: int, high: int) -> Float32:
        """Outputs low..high, along their inputs a run of rows at a time, then along their outputs one of columns."""
        stored = self._stored(name)
        columns = self.inner.shape(stored)[1]
        scale = self._norm_scale(edit.norm, columns)
        result = np.empty((high - low, columns), np.float32)
        for start, stop in _runs(low, high, columns):
            rows = self.inner.rows(stored, start, stop).astype(np.float64)
            result[start - low : stop - low] = _single(edit.inputs(rows, scale))
        for start, stop in _runs(0, columns, high - low) if edit.changes_outputs else ():
            result[:, start:stop] = _single(edit.outputs(result[:, start:stop].astype(np.float64), low))
        return result

    def _norm_scale(self, norm: str, size: int) -> Float64 | None:
        if not norm:
            return None
        return self.inner.tensor(f"{norm}{WEIGHT}", (size,)).astype(np.float64) + self._offset


def _runs(low: int, high: int, width: int) -> list[tuple[int, int]]:
    step = max(1, _CHUNK_ITEMS // max(1, width))
    return [(start, min(start + step, high)) for start in range(low, high, step)]


def _single(values: Float64) -> Float32:
    if values.size and np.abs(values).max() > np.finfo(np.float32).max:
        raise CompileError("a weight leaves the range of float32 when the norm's scale is multiplied into it")
    return values.astype(np.float32)
