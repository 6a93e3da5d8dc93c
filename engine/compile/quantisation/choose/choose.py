"""Streams texts through the network layer by layer and chooses the codes of each matrix on the inputs it then has."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.compile.calibration.forward import mixed_text
from engine.compile.calibration.layer_reader import LayerReader, gated, norm
from engine.compile.quantisation.choose.form import (
    Addition,
    CodeForm,
    Linear,
    OutputError,
    SharedInputs,
    Streams,
    choose_codes,
)
from engine.compile.quantisation.choose.matrices import HEAD, MatrixGroup, groups_of, head_tensor
from engine.compile.quantisation.methods.blocks import BlockForm, Blocks, Bytes, pack_nibbles, unpack_nibbles
from engine.compile.quantisation.rounding.codes import BlockCodes, BlockScales
from engine.compile.sources.checkpoint import Checkpoint, CheckpointView, Float32
from engine.models.network import Network

Number = TypeVar("Number", np.uint8, np.float32)
CODES, SCALES, ZEROS = "codes", "scales", "zeros"


@dataclass(slots=True)
class _Layout:
    stem: str
    rows: int
    blocks: int
    block: int
    inputs: int
    zeros: str  # the type of the zeros, "" = there are none
    bits: int


class CodesFolder(Mapping[str, BlockCodes]):
    """Codes of matrices by the name of their tensor. A matrix is written in runs of rows, and read so."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._layouts: dict[str, _Layout] = {}
        self._count = 0

    def __getitem__(self, name: str) -> BlockCodes:
        return self.read(name, 0, self._layouts[name].rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def __contains__(self, name: object) -> bool:
        return name in self._layouts

    def append(self, name: str, codes: BlockCodes) -> None:
        """Write further rows of a tensor. ValueError unless they have the form of those before them."""
        rows, blocks, block = codes.codes.shape
        zeros = "" if codes.grid.zeros is None else str(codes.grid.zeros.dtype)
        layout = _Layout("", 0, blocks, block, codes.inputs, zeros, codes.bits)
        if name not in self._layouts:
            self._layouts[name] = layout
            layout.stem = str(self._count)
            self._count += 1
        known = self._layouts[name]
        if replace(layout, stem=known.stem, rows=known.rows) != known:
            raise ValueError(f"rows of {name} have another form than those before them")
        packed = codes.codes if codes.bits == 8 else pack_nibbles(codes.codes)
        self._write(known.stem, CODES, packed.tobytes())
        self._write(known.stem, SCALES, codes.grid.scales.astype(np.float32, copy=False).tobytes())
        if codes.grid.zeros is not None:
            self._write(known.stem, ZEROS, codes.grid.zeros.tobytes())
        known.rows += rows

    def form(self, name: str) -> BlockForm:
        """Of a tensor's codes; KeyError when it has none here."""
        layout = self._layouts[name]
        return BlockForm(layout.bits, layout.block, layout.zeros == "uint8")

    def read(self, name: str, start: int, stop: int) -> BlockCodes:
        """Rows start..stop of a tensor; KeyError when it has no codes here."""
        layout = self._layouts[name]
        shape = (stop - start, layout.blocks)
        codes = self._read(layout.stem, CODES, start, (*shape, layout.block * layout.bits // 8), np.uint8)
        scales = self._read(layout.stem, SCALES, start, shape, np.float32)
        grid = BlockScales(scales, self._zeros(layout, start, shape), layout.block)
        return BlockCodes(codes if layout.bits == 8 else unpack_nibbles(codes), grid, layout.inputs, layout.bits)

    def _zeros(self, layout: _Layout, start: int, shape: tuple[int, int]) -> Bytes | Float32 | None:
        if not layout.zeros:
            return None
        if layout.zeros == "float32":
            return self._read(layout.stem, ZEROS, start, shape, np.float32)
        return self._read(layout.stem, ZEROS, start, shape, np.uint8)

    def _write(self, stem: str, kind: str, content: bytes) -> None:
        with (self._folder / f"{stem}.{kind}").open("ab") as stream:
            stream.write(content)

    def _read(self, stem: str, kind: str, start: int, shape: tuple[int, ...], dtype: type[Number]) -> NDArray[Number]:
        row_bytes = math.prod(shape[1:]) * np.dtype(dtype).itemsize
        path = self._folder / f"{stem}.{kind}"
        return np.fromfile(path, dtype, math.prod(shape), offset=start * row_bytes).reshape(shape)


class ChosenCheckpoint(CheckpointView):
    """As `inner`, floats included; `blocks` of a matrix in `codes` are those."""

    def __init__(self, inner: Checkpoint, codes: CodesFolder) -> None:
        super().__init__(inner)
        self._codes = codes

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        """Rows start..stop in the chosen codes; of other matrices as they are stored."""
        if name in self._codes:
            return self._codes.read(name, start, stop).blocks()
        return self.inner.blocks(name, start, stop)

    def form(self, name: str) -> BlockForm | None:
        return self._codes.form(name) if name in self._codes else self.inner.form(name)


HEAD_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Forms:
    """How the layers are stored, the head, and matrices that get 8 bits; None: there is nothing to choose in it."""

    layers: CodeForm
    head: CodeForm | None = None
    wide: CodeForm | None = None


class Chooser:
    """Chooses the codes of a network's matrices and writes them to `codes`; a layer is in memory at a time.

    kept: matrices whose floats are those of codes already. wide: those that get 8 bits. errors: of outputs, by the kind
    of the matrix. advance: is told of every group of matrices.
    """

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
        self._wide = wide
        self._checkpoint = checkpoint
        self._network = network
        self._forms = forms
        self._codes = codes
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
        mixed = projected.then(normed, lambda stacked, x: mixed_text(reader, layer, stacked, x), normed)
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
        return streams.map(lambda x: norm(x, weight, epsilon))

    def _linear(self, group: MatrixGroup, inputs: Streams, ahead: Streams | None = None) -> Linear:
        """Choose the codes of a group. ahead: the streams that its outputs are added to."""
        form, weight, free = self._form_of(group), group.weight(self._checkpoint), group.without(self._kept)
        coded = {}
        if free.modules:
            chosen = free.weight(self._checkpoint)
            addition = None if ahead is None else Addition(chosen, ahead)
            codes, error = choose_codes(chosen, SharedInputs.measured(inputs, form.block, addition), form)
            coded = free.parts(self._checkpoint, codes)
            self.errors[group.kind] += error
        for name, part in coded.items():
            self._codes.append(name, part)
        self._advance(1)
        stacked = [self._floats_of(name, coded) for name in group.tensors]
        return Linear(weight, np.concatenate(stacked), group.bias(self._checkpoint))

    def _form_of(self, group: MatrixGroup) -> CodeForm:
        """A group gets 8 bits as a whole."""
        wide = self._forms.wide
        return wide if wide is not None and self._wide.issuperset(group.tensors) else self._forms.layers

    def _floats_of(self, name: str, coded: Mapping[str, BlockCodes]) -> Float32:
        if name in coded:
            return coded[name].floats()
        return self._checkpoint.tensor(name, self._checkpoint.shape(name))

    def _head(self, states: Streams, form: CodeForm) -> None:
        name, vocab = head_tensor(self._network), self._network.spec.vocab
        inputs = SharedInputs.measured(states, form.block)
        for start in range(0, vocab, HEAD_ROWS):
            rows = self._checkpoint.rows(name, start, min(start + HEAD_ROWS, vocab))
            codes, error = choose_codes(rows, inputs, form)
            self._codes.append(name, codes)
            self.errors[HEAD] += error
            self._advance(1)


def embedded(checkpoint: Checkpoint, network: Network, texts: Sequence[Sequence[int]]) -> list[Float32]:
    """The stream before the first layer, of each text [tokens, hidden]."""
    name = f"{network.details.names.embedding}.weight"
    used = sorted({token for text in texts for token in text})
    rows = np.concatenate([checkpoint.rows(name, token, token + 1) for token in used])
    rows = rows * np.float32(network.details.multipliers.embedding)
    return [rows[np.searchsorted(used, np.array(text))] for text in texts]


def steps_of(network: Network, forms: Forms) -> int:
    """How often `advance` is told of one more."""
    return 4 * network.spec.layers + (-(-network.spec.vocab // HEAD_ROWS) if forms.head else 0)
