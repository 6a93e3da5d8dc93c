"""Streams texts through the network layer by layer and chooses the codes of each matrix on the inputs it then has."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.compile.calibration.forward import embedded, mixed_text
from engine.compile.calibration.layer_reader import LayerReader, gated, norm
from engine.compile.quantisation.choose.form import CodeForm, Linear, OutputError, SharedInputs, Streams, choose_codes
from engine.compile.quantisation.choose.matrices import HEAD, MatrixGroup, groups_of, head_tensor
from engine.compile.quantisation.methods.blocks import BlockForm, Blocks, pack_nibbles, unpack_nibbles
from engine.compile.quantisation.rounding.codes import BlockCodes, BlockScales
from engine.compile.sources.checkpoint import Checkpoint, CheckpointView, Float32
from engine.models.network import Network

CODES, SCALES, ZEROS = "codes", "scales", "zeros"


@dataclass(frozen=True, slots=True)
class _Layout:
    """row: what is stored of a row of the matrix."""

    row: np.dtype[Any]
    block: int
    inputs: int
    bits: int


class CodesFolder:
    """Codes of matrices by the name of their tensor. A matrix is written in runs of rows, and read so."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.layouts: dict[str, _Layout] = {}

    def append(self, name: str, codes: BlockCodes) -> None:
        """Write further rows of a tensor. ValueError unless they have the form of those before them."""
        packed, zeros = codes.codes if codes.bits == 8 else pack_nibbles(codes.codes), codes.grid.zeros
        parts: dict[str, NDArray[Any]] = {CODES: packed, SCALES: codes.grid.scales.astype(np.float32, copy=False)}
        parts |= {} if zeros is None else {ZEROS: zeros}
        row = np.dtype([(part, values.dtype, values.shape[1:]) for part, values in parts.items()])
        layout = _Layout(row, codes.grid.block, codes.inputs, codes.bits)
        if self.layouts.setdefault(name, layout) != layout:
            raise ValueError(f"rows of {name} have another form than those before them")
        rows = np.empty(len(packed), row)
        for part, values in parts.items():
            rows[part] = values
        with self._path(name).open("ab") as stream:
            rows.tofile(stream)

    def form(self, name: str) -> BlockForm:
        """Of a tensor's codes; KeyError when it has none here."""
        layout = self.layouts[name]
        has_zeros = ZEROS in (layout.row.names or ()) and layout.row[ZEROS].base == np.uint8
        return BlockForm(layout.bits, layout.block, has_zeros)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> BlockCodes:
        """Rows start..stop of a tensor, None = to the last; KeyError when it has no codes here."""
        layout = self.layouts[name]
        count = -1 if stop is None else stop - start
        rows = np.fromfile(self._path(name), layout.row, count, offset=start * layout.row.itemsize)
        found = {part: np.ascontiguousarray(rows[part]) for part in layout.row.names or ()}
        codes = found[CODES] if layout.bits == 8 else unpack_nibbles(found[CODES])
        return BlockCodes(codes, BlockScales(found[SCALES], found.get(ZEROS), layout.block), layout.inputs, layout.bits)

    def _path(self, name: str) -> Path:
        return self._folder / f"{list(self.layouts).index(name)}.rows"


class ChosenCheckpoint(CheckpointView):
    """As `inner`, floats included; `blocks` of a matrix in `codes` are those."""

    def __init__(self, inner: Checkpoint, codes: CodesFolder) -> None:
        super().__init__(inner)
        self._codes = codes

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        is_chosen = name in self._codes.layouts
        return self._codes.read(name, start, stop).blocks() if is_chosen else self.inner.blocks(name, start, stop)

    def form(self, name: str) -> BlockForm | None:
        return self._codes.form(name) if name in self._codes.layouts else self.inner.form(name)


HEAD_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Forms:
    """How the layers are stored, the head, and matrices that get 8 bits; None: there is nothing to choose in it."""

    layers: CodeForm
    head: CodeForm | None = None
    wide: CodeForm | None = None


class Chooser:
    """Chooses the codes of a network's matrices and writes them to `codes`; a layer is in memory at a time. kept:
    matrices whose floats are those of codes already. wide: those that get 8 bits. errors: of outputs, by the kind of
    the matrix. advance: is told of every group of matrices."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        network: Network,
        forms: Forms,
        codes: CodesFolder,
        advance: Callable[[int], None],
        kept: frozenset[str] = frozenset(),
        wide: frozenset[str] = frozenset(),
    ) -> None:
        self._kept = kept if forms.wide else kept | wide
        self._checkpoint, self._network = checkpoint, network
        self._forms, self._codes, self._wide = forms, codes, wide
        self._advance = advance
        self.errors: dict[str, OutputError] = defaultdict(OutputError)

    def run(self, texts: Sequence[Sequence[int]]) -> Streams:
        """Over all layers and the head; the streams behind the last layer. CompileError when inputs are not finite."""
        network = self._network
        states = embedded(self._checkpoint, network, texts)
        streams = Streams(states, states)
        for layer in range(network.spec.layers):
            streams = self._layer(layer, streams)
        if self._forms.head is not None:
            reader = LayerReader(self._checkpoint, network, network.spec.layers)
            self._head(self._normed(reader, network.details.names.final_norm, streams), self._forms.head)
        return streams

    def _layer(self, layer: int, streams: Streams) -> Streams:
        """Attention or recurrence, then the feed forward; a group of matrices after the other, for all texts."""
        network, names = self._network, self._network.details.names
        qkv, output, gate_up, down = groups_of(network, layer)
        reader = LayerReader(self._checkpoint, network, layer)
        normed = self._normed(reader, names.attention_norm, streams)
        projected = self._linear(qkv, normed)
        mixed = projected.then(normed, lambda stacked, x: mixed_text(reader, stacked, x), normed)
        streams = self._added(reader, output, mixed, streams, names.attention_post_norm)
        normed = self._normed(reader, names.ffn_norm, streams)
        inner = self._linear(gate_up, normed).then(normed, lambda x: gated(x, network.details.activation))
        return self._added(reader, down, inner, streams, names.ffn_post_norm)

    def _added(self, reader: LayerReader, group: MatrixGroup, inputs: Streams, streams: Streams, name: str) -> Streams:
        """The streams with what a group of matrices gives, behind a norm (of that name, if any) and its multiplier."""
        factor = np.float32(self._network.details.multipliers.residual)
        is_plain = not name and factor == 1  # only then its outputs make up for what the stream is behind by
        product = self._linear(group, inputs, streams if is_plain else None)
        return product.then(inputs, lambda grown, x: x + reader.normed(grown, name) * factor, streams)

    def _normed(self, reader: LayerReader, name: str, streams: Streams) -> Streams:
        if not name:
            return streams
        weight, epsilon = reader.norm_weight(name), self._network.norm_epsilon

        def normed(x: Float32) -> Float32:
            return norm(x, weight, epsilon)

        return streams.each(normed, normed)

    def _linear(self, group: MatrixGroup, inputs: Streams, ahead: Streams | None = None) -> Linear:
        """Choose the codes of a group. ahead: the streams that its outputs are added to."""
        form, weight, free = self._form_of(group), group.weight(self._checkpoint), group.without(self._kept)
        coded = {}
        if free.modules:
            chosen = free.weight(self._checkpoint)
            addition = None if ahead is None else (chosen, ahead)
            codes, error = choose_codes(chosen, SharedInputs.measured(inputs, form.block, addition), form)
            coded = free.parts(self._checkpoint, codes)
            self.errors[group.kind] += error
        for name, part in coded.items():
            self._codes.append(name, part)
        self._advance(1)
        read = self._checkpoint
        stacked = [
            coded[name].floats() if name in coded else read.tensor(name, read.shape(name)) for name in group.tensors
        ]
        return Linear(weight, np.concatenate(stacked), group.bias(self._checkpoint))

    def _form_of(self, group: MatrixGroup) -> CodeForm:
        """A group gets 8 bits as a whole."""
        wide = self._forms.wide
        return wide if wide is not None and self._wide.issuperset(group.tensors) else self._forms.layers

    def _head(self, states: Streams, form: CodeForm) -> None:
        name, vocab = head_tensor(self._network), self._network.spec.vocab
        inputs = SharedInputs.measured(states, form.block)
        for start in range(0, vocab, HEAD_ROWS):
            rows = self._checkpoint.rows(name, start, min(start + HEAD_ROWS, vocab))
            codes, error = choose_codes(rows, inputs, form)
            self._codes.append(name, codes)
            self.errors[HEAD] += error
            self._advance(1)


def steps_of(network: Network, forms: Forms) -> int:
    """How often `advance` is told of one more."""
    return 4 * network.spec.layers + (-(-network.spec.vocab // HEAD_ROWS) if forms.head else 0)
