"""The linear graphs of a segmented bundle, bound to the rows they share with attention.

Legend: L = layers, N = rows, R = those that need logits.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Array
from engine.bundle.manifest import GraphSpec, Manifest, ModelSpec
from engine.bundle.recurrent_forms import BETA, CONV_IN, DECAY, GATE_IN, GATE_OUT, OUT
from engine.graphs.batch import PackedBatch
from engine.graphs.layout import linear_graphs
from engine.graphs.lora_rows import AdapterSpan, LoraRows, Masks
from engine.graphs.onnx_binding import Binding, bind
from engine.graphs.onnx_library import ort
from engine.graphs.rotary import RotaryTable

Floats = NDArray[np.float32]
KEPT_COUNTS = 64


def gate_name(model: ModelSpec, layer: int) -> str:
    """The buffer of a layer's output gate: another than that of the layer before, which is read meanwhile."""
    return f"{'attention' if layer in model.attention_layers else 'recurrent'}_gate {layer % 2}"


def _gate_widths(model: ModelSpec) -> dict[str, int]:
    """Of the gates of heads; those of recurrent layers are among theirs."""
    width = model.heads * model.head_dim if model.has_output_gate else 0
    return {f"attention_gate {index}": width for index in range(2)} if width else {}


def _recurrent_widths(model: ModelSpec) -> dict[str, int]:
    spec = model.recurrent
    if spec is None:
        return {}
    steps = {CONV_IN: spec.channels, DECAY: spec.value_heads, BETA: spec.value_heads, OUT: spec.value_width}
    return steps | {f"recurrent_gate {index}": spec.value_width for index in range(2)}


class RowBuffers:
    """Everything that has a row for each row of a pass: [1, N, width] at the end of memory for the most rows there are.

    At the end, because a decode then keeps its place while the number of prompt rows before it changes. One row more
    than that is there, for a lone last row that attention computes together with a neighbour.
    """

    def __init__(self, manifest: Manifest, most: int) -> None:
        model = manifest.model
        widths = {
            "hidden 0": model.hidden,
            "hidden 1": model.hidden,
            "query": model.heads * model.head_dim,
            "key": model.kv_heads * model.head_dim,
            "value": model.kv_heads * model.head_dim,
            "attended": model.heads * model.head_dim,
            "cos": model.rope.rotary_dim // 2,
            "sin": model.rope.rotary_dim // 2,
            **_gate_widths(model),
            **_recurrent_widths(model),
        }
        self.most = most
        self._ids = np.zeros((1, most), np.int32)
        self._rows = {name: np.zeros((1, most + 1, width), np.float32) for name, width in widths.items()}

    def ids(self, rows: int) -> NDArray[np.int32]:
        """Token ids [1, N]."""
        return self._ids[:, self.most - rows :]

    def rows(self, name: str, rows: int) -> Floats:
        """[1, N, width]."""
        return self._rows[name][:, self.most - rows : self.most]

    def attention_rows(self, from_end: int, count: int) -> dict[str, Floats]:
        """What attention reads and writes: `count` rows, the first of them `from_end` before the end of the pass."""
        return {name: self.some(name, from_end, count) for name in ("query", "key", "value", "attended")}

    def some(self, name: str, from_end: int, count: int) -> Floats:
        """[1, count, width], from the row that is `from_end` before the end of the pass."""
        start = self.most - from_end
        return self._rows[name][:, start : start + count]

    def fill(self, batch: PackedBatch, tables: Mapping[bool, RotaryTable]) -> None:
        """Write the ids and rotations of a pass."""
        rows = batch.shape.rows
        self.ids(rows)[0] = batch.input_ids
        tables[True].fill(batch.positions, self.rows("cos", rows)[0])
        tables[False].fill(batch.positions, self.rows("sin", rows)[0])


Bound = tuple[int, AdapterSpan]  # how many rows, and the adapters that the pass reads


class LinearChain:
    """The linear graphs in order. adapters: started for each pass before its graphs are asked for."""

    def __init__(
        self,
        manifest: Manifest,
        sessions: Mapping[str, ort.InferenceSession],
        buffers: RowBuffers,
        adapters: LoraRows,
    ) -> None:
        self._manifest = manifest
        self._graphs = linear_graphs(manifest)
        self._last_part = manifest.model.layers
        self._sessions = sessions
        self._buffers = buffers
        self._adapters = adapters
        self._layers: dict[Bound, tuple[list[Binding], Masks]] = {}
        self._heads: dict[Bound, tuple[Binding, dict[str, Floats], Masks]] = {}

    def layers(self, rows: int) -> list[Binding]:
        """The first L graphs bound to N rows: what comes before the attention of each layer."""
        key = rows, self._adapters.span
        if key not in self._layers:
            if len(self._layers) >= KEPT_COUNTS:
                del self._layers[next(iter(self._layers))]
            masks = self._adapters.masks(rows)
            bound = [self._bind_layer(graph, i, rows, masks) for i, graph in enumerate(self._graphs[:-1])]
            self._layers[key] = bound, masks
        found, masks = self._layers[key]
        self._adapters.fill(masks)
        return found

    def logits(self, chosen: NDArray[np.int64], rows: int, least: int) -> Floats:
        """The last graph over the `chosen` rows [R] of N: logits [R, V]. least: rows it must take although there are
        fewer, because how a row rounds may depend on their number."""
        if not len(chosen):
            return np.empty((0, self._manifest.row_outputs), np.float32)
        bound, arrays, masks = self._head(max(len(chosen), least))
        self._adapters.fill(masks, chosen)
        for name, buffer in self._given(self._last_part - 1).items():
            given, taken = self._buffers.rows(buffer, rows)[0], arrays[name][0, : len(chosen)]
            np.take(given, chosen, axis=0, out=taken, mode="clip")
        bound.run()
        return arrays["logits"][0, : len(chosen)]

    def clear(self) -> None:
        """Drop the bindings."""
        self._layers.clear()
        self._heads.clear()

    def _bind_layer(self, graph: GraphSpec, index: int, rows: int, masks: Masks) -> Binding:
        buffers = self._buffers
        arrays: dict[str, Array] = {
            "input_ids": buffers.ids(rows),
            "position_ids_cos": buffers.rows("cos", rows)[None],
            "position_ids_sin": buffers.rows("sin", rows)[None],
            **{name: buffers.rows(name, rows) for name in ("query", "key", "value")},
            **self._adapters.inputs(index + 1, masks),
        }
        own = {"hidden_out": f"hidden {index % 2}", GATE_OUT: gate_name(self._manifest.model, index)}
        own |= {name: name for name in _recurrent_widths(self._manifest.model)} | self._given(index - 1)
        wanted = {tensor.name for tensor in (*graph.inputs, *graph.outputs)}
        arrays |= {name: buffers.rows(buffer, rows) for name, buffer in own.items() if name in wanted}
        return self._bind(graph, arrays)

    def _given(self, layer: int) -> dict[str, str]:
        """The buffers of what the end of a layer takes, by the names of its inputs."""
        model = self._manifest.model
        given = {"hidden_in": f"hidden {layer % 2}", "attended": "attended"}
        return given | ({GATE_IN: gate_name(model, layer)} if model.has_output_gate else {})

    def _head(self, rows: int) -> tuple[Binding, dict[str, Floats], Masks]:
        key = rows, self._adapters.span
        if key not in self._heads:
            if len(self._heads) >= KEPT_COUNTS:
                del self._heads[next(iter(self._heads))]
            model = self._manifest.model
            attended = model.heads * model.head_dim
            widths = {
                "hidden_in": model.hidden,
                "attended": attended,
                GATE_IN: attended,
                "logits": self._manifest.row_outputs,
            }
            arrays = {name: np.zeros((1, rows, width), np.float32) for name, width in widths.items()}
            masks = self._adapters.masks(rows)
            bound = self._bind(self._graphs[-1], arrays | self._adapters.inputs(self._last_part + 1, masks))
            self._heads[key] = bound, arrays, masks
        return self._heads[key]

    def _bind(self, graph: GraphSpec, arrays: Mapping[str, Array]) -> Binding:
        session = self._sessions[graph.name]
        bound = Binding(session, session.io_binding(), [])
        for tensor in graph.inputs:
            bind(bound, bound.binding.bind_input, tensor.name, arrays[tensor.name])
        for tensor in graph.outputs:
            bind(bound, bound.binding.bind_output, tensor.name, arrays[tensor.name])
        return bound
