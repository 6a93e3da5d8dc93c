"""A checkpoint whose tensors are changed as they are read: one matrix in memory at most."""

import numpy as np

from engine.compile.quantisation.methods.blocks import BlockForm, Blocks, Float64
from engine.compile.quantisation.transforms.rotation import Edits, LinearEdit
from engine.compile.sources.checkpoint import Checkpoint, CheckpointView, Float32
from engine.errors import CompileError
from engine.models.network import FOLLOWING, FamilyDetails, Network

WEIGHT, BIAS = ".weight", ".bias"
_CHUNK_ITEMS = 1 << 21  # numbers in double precision at once


class TransformedCheckpoint(CheckpointView):
    """As `inner` with `edits` applied. norm_offset: added to the stored scale of every norm."""

    def __init__(self, inner: Checkpoint, edits: Edits, norm_offset: float = 0.0) -> None:
        super().__init__(inner)
        self.edits = edits
        self._offset = norm_offset
        self._turned: tuple[str, Float32] | None = None  # the last matrix whose rows all depend on all

    def total_bytes(self) -> int:
        """Bytes of all float tensors as stored; a tensor that two are made of counts twice."""
        return self.inner.total_bytes() + sum(map(self.stored_bytes, self._made()))

    def unused(self) -> list[str]:
        """Names of the tensors that nothing has asked for yet. One in whose place another is read counts as used."""
        return [name for name in self.inner.unused() if name not in self._made()]

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        self.require(name, shape)
        if self._linear(name, WEIGHT) is not None:
            return self.rows(name, 0, shape[0])
        values = super().tensor(name, shape)
        bias = self._linear(name, BIAS)
        if bias is not None:
            return _single(bias.outputs(values.astype(np.float64), 0))
        if (module := name.removesuffix(WEIGHT)) not in self.edits.norms:
            return values
        factors = self.edits.norms[module]
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
        return self.inner.blocks(name, start, stop) if self._linear(name, WEIGHT) is None else None

    def form(self, name: str) -> BlockForm | None:
        return self.inner.form(name) if self._linear(name, WEIGHT) is None else None

    def _linear(self, name: str, suffix: str) -> LinearEdit | None:
        return self.edits.linears.get(name.removesuffix(suffix)) if name.endswith(suffix) else None

    def stored(self, name: str) -> str:
        """What a matrix is made of, perhaps one of another name."""
        edit = self._linear(name, WEIGHT)
        return f"{edit.source}{WEIGHT}" if edit is not None and edit.source else name

    def _made(self) -> list[str]:
        """Tensors made of a matrix that stands under another name."""
        return [f"{name}{WEIGHT}" for name, edit in self.edits.linears.items() if edit.source]

    def _changed(self, name: str, edit: LinearEdit, low: int, high: int) -> Float32:
        """Outputs low..high, along their inputs a run of rows at a time, then along their outputs one of columns."""
        stored, scale = self.stored(name), None
        columns = self.inner.shape(stored)[1]
        if edit.norm:
            scale = self.inner.tensor(f"{edit.norm}{WEIGHT}", (columns,)).astype(np.float64) + self._offset
        result = np.empty((high - low, columns), np.float32)
        for start, stop in _runs(low, high, columns):
            rows = self.inner.rows(stored, start, stop).astype(np.float64)
            result[start - low : stop - low] = _single(edit.inputs(rows, scale))
        changes_outputs = edit.output_scale is not None or edit.output_rotation is not None
        for start, stop in _runs(0, columns, high - low) if changes_outputs else ():
            result[:, start:stop] = _single(edit.outputs(result[:, start:stop].astype(np.float64), low))
        return result


def _runs(low: int, high: int, width: int) -> list[tuple[int, int]]:
    step = max(1, _CHUNK_ITEMS // max(1, width))
    return [(start, min(start + step, high)) for start in range(low, high, step)]


def _single(values: Float64) -> Float32:
    if values.size and np.abs(values).max() > np.finfo(np.float32).max:
        raise CompileError("a weight leaves the range of float32 when the norm's scale is multiplied into it")
    return values.astype(np.float32)


def head_basis(checkpoint: Checkpoint, network: Network) -> Float64 | None:
    """[L, K, 1 + D, D]: of each head the factors of its keys, and the matrix that its values are multiplied with. None
    where nothing of either is changed. Factors of keys commute with their rotation by position."""
    spec, changes = network.spec, list[Edits]()  # the first one first
    while isinstance(checkpoint, CheckpointView):
        if isinstance(checkpoint, TransformedCheckpoint):
            changes.insert(0, checkpoint.edits)
        checkpoint = checkpoint.inner
    if not changes or len(spec.cache_groups) != 1:
        return None
    shape = (len(spec.attention_layers), spec.kv_heads, 1 + spec.head_dim, spec.head_dim)
    found = np.zeros(shape)
    for index, layer in enumerate(spec.attention_layers):
        keys, values = _of_layer(changes, network, layer)
        for head in range(spec.kv_heads):
            own = slice(head * spec.head_dim, (head + 1) * spec.head_dim)
            found[index, head, 0], found[index, head, 1:] = keys[own], values[own, own]
    same = np.concatenate([np.ones((1, spec.head_dim)), np.eye(spec.head_dim)])
    return None if np.array_equal(found, np.broadcast_to(same, shape)) else found


def _of_layer(changes: list[Edits], network: Network, layer: int) -> tuple[Float64, Float64]:
    """Factors of keys [K * D], and what values are multiplied with [K * D, K * D]."""
    names, width = network.details.names, network.key_width
    modules, is_stacked = [name.format(layer=layer) for name in names.qkv], len(names.qkv) == 1
    key_module, value_module = (modules[0], modules[0]) if is_stacked else (modules[1], modules[2])
    first_key, first_value = (network.query_width, network.query_width + width) if is_stacked else (0, 0)
    keys, values = np.eye(width), np.eye(width)
    for change in changes:
        if (edit := change.linears.get(key_module)) is not None and edit.output_scale is not None:
            keys = edit.output_scale[first_key : first_key + width, None] * keys
        if (edit := change.linears.get(value_module)) is not None:
            values = edit.outputs(values, first_value)
        norm = change.norms.get(names.k_norm.format(layer=layer))
        if norm is not None:
            keys = np.tile(norm, width // len(norm))[:, None] * keys
    return np.diagonal(keys).copy(), values


LAYERS = "layers."


class BlockNames(CheckpointView):
    """A checkpoint that numbers what layers have as `FamilyDetails.blocks` says."""

    def __init__(self, inner: Checkpoint, details: FamilyDetails) -> None:
        super().__init__(inner)
        self._blocks, self._first = details.blocks, details.roots[0]
        known = (root for root in details.roots if f"{self._under(root, details.names.embedding)}.weight" in inner)
        self._root = next(known, self._first)

    def stored(self, name: str) -> str:
        """Under its block's number and the checkpoint's root."""
        before, found, rest = self._under(self._root, name).partition(LAYERS)
        if not found:
            return before
        layer, _, rest = rest.partition(".")
        block = self._blocks[int(layer)][rest.startswith(FOLLOWING)]
        return f"{before}{LAYERS}{block}.{rest.removeprefix(FOLLOWING)}"

    def _under(self, root: str, name: str) -> str:
        return root + name.removeprefix(self._first) if name.startswith(self._first) else name


def family_view(checkpoint: Checkpoint, network: Network) -> Checkpoint:
    """The checkpoint itself where the family has neither other names nor constants."""
    details = network.details
    if details.blocks:
        checkpoint = BlockNames(checkpoint, details)
    linears: dict[str, LinearEdit] = {}
    for layer in range(network.spec.layers):
        for module, runs in details.factors.items():
            name = module.format(layer=layer)
            scale = np.ones(checkpoint.shape(f"{name}.weight")[0])
            for start, factor in runs:
                scale[start:] = factor
            linears[name] = LinearEdit(output_scale=scale)
    return TransformedCheckpoint(checkpoint, Edits(linears=linears)) if linears else checkpoint
