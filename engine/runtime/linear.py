"""The linear graphs of a segmented bundle, bound to the rows they share with attention, and the adapters of each row.
Legend: L = layers, N = rows, R = those that need logits, J = ranks of adapters side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.adapters.adapter import Adapter
from engine.bundle.manifest import GraphSpec, Manifest
from engine.bundle.model_spec import ModelSpec
from engine.bundle.segments import (
    BETA,
    CONV_IN,
    DECAY,
    EXPERTS,
    GAIN,
    GATE_IN,
    GATE_OUT,
    LAYER_INPUTS,
    MASK,
    OUT,
    SINKS,
    A,
    B,
)
from engine.bundle.specs import LoraModule
from engine.bundle.tensors import IDS, LOGITS, Array
from engine.bundle.vision import EMBEDDED, EMBEDS, deepstack_name
from engine.runtime.buffers import RotaryTable, linear_graphs
from engine.runtime.interface import FLOAT32, PackedBatch
from engine.runtime.onnx_library import ort
from engine.runtime.sessions import Binding, bind_all

Floats = NDArray[np.float32]
Masks = dict[str, Floats]
NOBODY = -1  # the adapter of rows that have none
_PADDING = -2  # whose the rank of zeros behind all others is: no row takes it


class RoutingCount:
    """Which experts the rows of a step chose, counted: k a row.
    chosen: over all rows and layers so far, those of padding rows among them. read: different ones of each layer and
    step, added up: what of the weights the steps read."""

    def __init__(self, model: ModelSpec, most: int) -> None:
        self.chosen = self.read = 0
        self._spec = spec = model.experts
        self._last = model.layers - 1  # its experts follow the rows that need logits
        shape = (len(spec.layers), most, spec.chosen) if spec else (0, 0, 0)
        self._numbers: NDArray[np.int64] = np.zeros(shape, np.int64)

    def rows(self, layer: int, rows: int) -> NDArray[np.int64]:
        """Where the graph that ends a layer with experts writes their numbers [1, N, k]."""
        assert self._spec is not None
        place = self._spec.layers.index(layer)
        return self._numbers[place : place + 1, :rows]

    def count(self, rows: int, logit_rows: int) -> None:
        spec = self._spec
        assert spec is not None
        ends_with = spec.layers[-1] == self._last
        inner = self._numbers[: len(spec.layers) - ends_with, :rows]
        last = self._numbers[-1, : logit_rows if ends_with else 0] + len(inner) * spec.count
        numbers = np.append(inner + np.arange(len(inner))[:, None, None] * spec.count, last)
        self.chosen += len(numbers)
        self.read += int(np.count_nonzero(np.bincount(numbers)))


Span = range  # of adapters, all that a step reads the factors of


class _SideBySide:
    """The factors of one module: a [L, J + 1, inputs], b [L, J + 1, outputs], the last rank zeros.
    owners: the adapter of each rank. edges: where the ranks of each adapter begin, and where those of the last end."""

    def __init__(self, module: LoraModule, layers: int, adapters: Sequence[Adapter]) -> None:
        ranks = [adapter.rank(module.name) for adapter in adapters]
        self.edges = np.cumsum([0, *ranks]).tolist()
        self.owners = np.append(np.repeat(np.arange(len(adapters)), ranks), _PADDING)
        self.a = np.zeros((layers, len(self.owners), module.inputs), np.float32)
        self.b = np.zeros((layers, len(self.owners), module.outputs), np.float32)
        for adapter, start in zip(adapters, self.edges, strict=False):
            for (name, layer), factors in adapter.factors.items():
                if name == module.name:
                    self.a[layer, start : start + len(factors.a)] = factors.a
                    self.b[layer, start : start + len(factors.b)] = factors.b

    def ranks(self, span: Span) -> slice:
        """Those of a span; the rank of zeros where it has none, so that no product is empty."""
        start, end = self.edges[span.start], self.edges[span.stop]
        return slice(start, end) if end > start else slice(len(self.owners) - 1, len(self.owners))


class LoraRows:
    """Sole owner of the adapters' factors; knows the adapters of the rows of the step at hand.
    A step reads the factors from its first adapter to its last, which lie side by side: a lone adapter costs no more
    for the others there are, and none costs next to nothing. is_uniform: every step reads all of them."""

    def __init__(self, manifest: Manifest, adapters: Sequence[Adapter], is_uniform: bool) -> None:
        self._modules = {
            module.name: (module, _SideBySide(module, manifest.model.layers, adapters)) for module in manifest.lora
        }
        self._numbers: Mapping[str, int] = {adapter.name: number for number, adapter in enumerate(adapters)}
        self._layers = manifest.model.layers
        self._of_row: NDArray[np.int64] = np.zeros(0, np.int64)
        self._everything = Span(len(adapters)) if is_uniform else None
        self.span = Span(0)

    def start(self, batch: PackedBatch) -> None:
        """Take in which adapter each row of a step has. KeyError for one that is not there."""
        if not self._numbers:
            return
        self._of_row = np.full(batch.shape.rows, NOBODY)
        for segment in batch.segments:
            if segment.adapter:
                self._of_row[segment.start : segment.end] = self._numbers[segment.adapter]
        taken = self._of_row[self._of_row >= 0]
        self.span = self._everything or (Span(int(taken.min()), int(taken.max()) + 1) if len(taken) else Span(0))

    def masks(self, rows: int) -> Masks:
        """For the span of this step, by module, [1, N, J] of zeros; modules of the same ranks share one."""
        shared: dict[bytes, Floats] = {}
        found: Masks = {}
        for name, (_, factors) in self._modules.items():
            owners = factors.owners[factors.ranks(self.span)]
            found[name] = shared.setdefault(owners.tobytes(), np.zeros((1, rows, len(owners)), np.float32))
        return found

    def fill(self, masks: Masks, chosen: NDArray[np.int64] | None = None) -> None:
        """Let each row take the ranks of its adapter. chosen: rows of the step [M], None = all of them."""
        if not self.span:  # zeros they are, and zeros they stay
            return
        of_row = self._of_row if chosen is None else self._of_row[chosen]
        for mask, name in {id(mask): (mask, name) for name, mask in masks.items()}.values():
            factors = self._modules[name][1]
            np.equal(of_row[:, None], factors.owners[factors.ranks(self.span)], out=mask[0, : len(of_row)])
            mask[0, len(of_row) :] = 0

    def inputs(self, part: int, masks: Masks) -> dict[str, Array]:
        """What the graph of a part takes, by the names of its tensors."""
        tensors: dict[str, Array] = {}
        for name, (module, factors) in self._modules.items():
            layer, ranks = part - 1 if module.starts_layer else part - 2, factors.ranks(self.span)
            if 0 <= layer < self._layers:
                tensors |= {A + name: factors.a[layer, ranks], B + name: factors.b[layer, ranks]}
                tensors[MASK + name] = masks[name]
        return tensors


KEPT_COUNTS = 64
SIDES = "cos", "sin"  # of what turns queries and keys
ATTENDED = "attended"
ATTENDING = ("query", "key", "value", ATTENDED)


def gate_name(model: ModelSpec, layer: int) -> str:
    """The buffer of a layer's output gate: another than that of the layer before, which is read meanwhile."""
    return f"{'recurrent' if model.recurrence_of(layer) else 'attention'}_gate {layer % 2}"


def _recurrent_widths(model: ModelSpec) -> dict[str, int]:
    spec = model.recurrent
    if spec is None:
        return {}
    steps = {CONV_IN: spec.channels, DECAY: spec.value_heads, BETA: spec.value_heads, OUT: spec.value_width}
    return steps | {f"recurrent_gate {index}": spec.value_width for index in range(2)}


def mixer_rows(model: ModelSpec, layer: int) -> dict[str, str]:
    """The buffers of what attention of a layer reads and writes, by the names of its tensors.
    Layers with heads of one form share them; keys and values that later layers read again have buffers of their own."""
    form, owner = model.attention_of(layer).form, model.owner_of(layer)
    heads = f" {form.kv_heads} of {form.head_dim}" if form.kv_heads or form.head_dim else ""
    fresh = f" {owner}" if owner in model.shared_layers else heads
    return {name: name + (fresh if name in ("key", "value") else heads) for name in ATTENDING}


def _mixer_widths(model: ModelSpec) -> dict[str, int]:
    heads_of = {layer: model.heads_of(model.attention_of(layer)) for layer in model.attention_layers}
    return {
        buffer: heads.key_width if name in ("key", "value") else heads.query_width
        for layer, heads in heads_of.items()
        for name, buffer in mixer_rows(model, layer).items()
    }


class RowBuffers:
    """Everything that has a row for each row of a step: [1, N, width] at the end of memory for the most rows there are.
    At the end, because a decode then keeps its place while the number of prompt rows before it changes. One row more
    than that is there, for a lone last row that attention computes together with a neighbour."""

    def __init__(self, manifest: Manifest, most: int) -> None:
        model = manifest.model
        widths = {
            **dict.fromkeys(("hidden 0", "hidden 1"), model.stream_width),
            **_mixer_widths(model),
            **({LAYER_INPUTS: model.layers * model.layer_inputs} if model.layer_inputs else {}),
            **{f"{side} {kind}": rope.rotary_dim // 2 for kind, rope in model.ropes.items() for side in SIDES},
            **({GAIN: 1} if model.rope.gain else {}),
            **(
                {f"attention_gate {i}": model.heads * model.head_dim for i in range(2)} if model.has_output_gate else {}
            ),
            **_recurrent_widths(model),
            **({EMBEDS: model.hidden, EMBEDDED: 1} if manifest.vision is not None else {}),
            **dict.fromkeys(_deepstack_names(manifest), model.hidden),
        }
        self.most = most
        self._tables = {
            f"{side} {kind}": RotaryTable(rope, side == "cos", FLOAT32)
            for kind, rope in model.ropes.items()
            for side in SIDES
        }
        self.mixers = {layer: mixer_rows(model, layer) for layer in model.attention_layers}
        self._width = model.hidden
        self._rope = model.rope
        self._given = (EMBEDS, *_deepstack_names(manifest))  # in the order in which an image's rows have them
        self.sinks = np.zeros(model.heads if model.has_sinks else 0, np.float32)  # of the layer at hand
        self._ids = np.zeros((1, most), np.int32)
        self._rows = {name: np.zeros((1, most + 1, width), np.float32) for name, width in widths.items()}

    def ids(self, rows: int) -> NDArray[np.int32]:
        """Token ids [1, N]."""
        return self._ids[:, self.most - rows :]

    def rows(self, name: str, rows: int) -> Floats:
        """[1, N, width]."""
        return self._rows[name][:, self.most - rows : self.most]

    def some(self, name: str, from_end: int, count: int) -> Floats:
        """[1, count, width], from the row that is `from_end` before the end of the step."""
        start = self.most - from_end
        return self._rows[name][:, start : start + count]

    def fill(self, batch: PackedBatch) -> None:
        rows = batch.shape.rows
        self.ids(rows)[0] = batch.input_ids
        if EMBEDDED in self._rows:
            is_embedded = self.rows(EMBEDDED, rows)[0]
            is_embedded[...] = 0
            for name in self._given[1:]:
                self.rows(name, rows)[...] = 0
            if batch.embedded is not None:
                is_embedded[batch.embedded.rows] = 1
                parts = np.split(batch.embedded.values, batch.embedded.values.shape[1] // self._width, axis=1)
                for name, values in zip(self._given, parts, strict=False):
                    self.rows(name, rows)[0, batch.embedded.rows] = values
        if GAIN in self._rows:
            self.rows(GAIN, rows)[0, :, 0] = self._rope.gains(batch.positions)
        turned_by = batch.positions if batch.axes is None else batch.axes
        for name, table in self._tables.items():
            table.fill(turned_by, self.rows(name, rows)[0])


def _deepstack_names(manifest: Manifest) -> tuple[str, ...]:
    return tuple(map(deepstack_name, range(manifest.vision.deepstack if manifest.vision is not None else 0)))


Bound = tuple[int, Span]  # how many rows, and the adapters that the step reads


def _make_room(bound: dict[Bound, Any]) -> None:
    if len(bound) >= KEPT_COUNTS:
        del bound[next(iter(bound))]


class LinearChain:
    """The linear graphs in order. adapters: started for each step before its graphs are asked for."""

    def __init__(
        self, manifest: Manifest, sessions: Mapping[str, ort.InferenceSession], buffers: RowBuffers, adapters: LoraRows
    ) -> None:
        self._manifest = manifest
        self._graphs = linear_graphs(manifest)
        self._last_part = manifest.model.layers
        self._head_given = self._given(self._last_part - 1)
        self._sessions = sessions
        self._buffers = buffers
        self._adapters = adapters
        self.routing = RoutingCount(manifest.model, buffers.most)
        self._layers: dict[Bound, tuple[list[Binding], Masks]] = {}
        self._heads: dict[Bound, tuple[Binding, dict[str, Floats], Masks]] = {}
        self._head_rows: dict[str, Floats] = {}  # what all of them are bound to: [1, R, width] for the most R so far

    def layers(self, rows: int) -> list[Binding]:
        """The first L graphs bound to N rows: what comes before the attention of each layer."""
        key = rows, self._adapters.span
        if key not in self._layers:
            _make_room(self._layers)
            masks = self._adapters.masks(rows)
            bound = [self._bind_layer(graph, i, rows, masks) for i, graph in enumerate(self._graphs[:-1])]
            self._layers[key] = bound, masks
        found, masks = self._layers[key]
        self._adapters.fill(masks)
        return found

    def logits(self, chosen: NDArray[np.int64], rows: int, least: int) -> Floats:
        """The last graph over the `chosen` rows [R] of N: logits [R, V], valid until the next call. least: rows it must
        take although there are fewer, because how a row rounds may depend on their number."""
        if not len(chosen):
            return np.empty((0, self._manifest.row_outputs), np.float32)
        bound, arrays, masks = self._head(max(len(chosen), least))
        self._adapters.fill(masks, chosen)
        for name, buffer in self._head_given.items():
            given, taken = self._buffers.rows(buffer, rows)[0], arrays[name][0, : len(chosen)]
            np.take(given, chosen, axis=0, out=taken, mode="clip")
        bound.run()
        return arrays[LOGITS][0, : len(chosen)]

    def clear(self) -> None:
        self._layers.clear()
        self._heads.clear()
        self._head_rows.clear()

    def _bind_layer(self, graph: GraphSpec, index: int, rows: int, masks: Masks) -> Binding:
        buffers = self._buffers
        arrays: dict[str, Array] = {IDS: buffers.ids(rows), SINKS: buffers.sinks, **self._rotation(index, rows)}
        arrays |= self._adapters.inputs(index + 1, masks)
        own = {"hidden_out": f"hidden {index % 2}", GATE_OUT: gate_name(self._manifest.model, index)}
        own |= {name: name for name in (EMBEDS, EMBEDDED, GAIN, LAYER_INPUTS, *_deepstack_names(self._manifest))}
        if index in self._manifest.model.attention_layers:
            own |= mixer_rows(self._manifest.model, index)
        own |= {name: name for name in _recurrent_widths(self._manifest.model)} | self._given(index - 1)
        wanted = {tensor.name for tensor in (*graph.inputs, *graph.outputs)}
        arrays |= {name: buffers.rows(buffer, rows) for name, buffer in own.items() if name in wanted}
        if EXPERTS in wanted:
            arrays[EXPERTS] = self.routing.rows(index - 1, rows)
        return self._bind(graph, arrays)

    def _rotation(self, layer: int, rows: int) -> dict[str, Array]:
        """What turns a layer, nothing where nothing does."""
        model = self._manifest.model
        kind = model.attention_of(layer).rotation
        sides = SIDES if kind in model.ropes else ()
        return {f"position_ids_{side}": self._buffers.rows(f"{side} {kind}", rows)[None] for side in sides}

    def _given(self, layer: int) -> dict[str, str]:
        """The buffers of what the end of a layer takes, by the names of its inputs."""
        model = self._manifest.model
        is_recurrent = model.recurrence_of(layer) is not None
        given = {"hidden_in": f"hidden {layer % 2}"} | ({LAYER_INPUTS: LAYER_INPUTS} if model.layer_inputs else {})
        given |= {OUT: OUT} if is_recurrent else {}
        given |= {ATTENDED: mixer_rows(model, layer)[ATTENDED]} if layer in model.attention_layers else {}
        return given | ({GATE_IN: gate_name(model, layer)} if is_recurrent or model.has_output_gate else {})

    def _head(self, rows: int) -> tuple[Binding, dict[str, Floats], Masks]:
        key = rows, self._adapters.span
        if key not in self._heads:
            _make_room(self._heads)
            model, masks = self._manifest.model, self._adapters.masks(rows)
            arrays: dict[str, Any] = dict(self._memory_of_head(rows))
            if model.experts and self._last_part - 1 in model.experts.layers:
                arrays[EXPERTS] = self.routing.rows(self._last_part - 1, rows)
            bound = self._bind(self._graphs[-1], arrays | self._adapters.inputs(self._last_part + 1, masks))
            self._heads[key] = bound, arrays, masks
        return self._heads[key]

    def _memory_of_head(self, rows: int) -> dict[str, Floats]:
        """[1, R, width] by the names of tensors. Memory that is too small is replaced, what is bound to it goes."""
        if not self._head_rows or len(self._head_rows[LOGITS][0]) < rows:
            self._heads.clear()
            room = 1 << (rows - 1).bit_length()
            widths = self._head_widths().items()
            self._head_rows = {name: np.zeros((1, room, width), np.float32) for name, width in widths}
        return {name: array[:, :rows] for name, array in self._head_rows.items()}

    def _head_widths(self) -> dict[str, int]:
        model, last = self._manifest.model, self._manifest.model.layers - 1
        recurrent, attended = model.recurrence_of(last), model.heads_of(model.attention_of(last)).query_width
        given = recurrent.value_width if recurrent else attended
        widths = {"hidden_in": model.stream_width, ATTENDED: attended, OUT: given, GATE_IN: given}
        return widths | {LAYER_INPUTS: model.layers * model.layer_inputs, LOGITS: self._manifest.row_outputs}

    def _bind(self, graph: GraphSpec, arrays: Mapping[str, Array]) -> Binding:
        sides = ({tensor.name: arrays[tensor.name] for tensor in side} for side in (graph.inputs, graph.outputs))
        return bind_all(graph.name, self._sessions[graph.name], *sides)
