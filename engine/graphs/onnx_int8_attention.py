"""Attention over int8 caches, and rows that are not finite: such caches cannot show them.

Legend: L = layers, N = rows, K = KV heads, T = columns of a cache, D = head size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Array
from engine.bundle.segments import ATTENTION, ATTENTION_CHUNK, IN_PLACE_ROWS
from engine.graphs.linear_chain import RowBuffers
from engine.graphs.onnx_binding import Binding, bind
from engine.graphs.onnx_library import ort

Inputs = dict[str, Array]
_sum = np.add.reduce


@dataclass(slots=True)
class ChunkBinding:
    """The graph for many rows, bound to one cache.

    codes: of keys and values [1, N, K * D], which go behind the past of `targets` [1, K, T, D]. columns: past ones
    and N.
    """

    graph: Binding
    codes: tuple[Array, Array]
    targets: tuple[Array, Array]
    columns: NDArray[np.int32]

    def run(self) -> None:
        """Run the graph over its buffers; raises what onnxruntime raises."""
        self.graph.run()
        end = int(self.columns)
        for codes, target in zip(self.codes, self.targets, strict=True):
            heads, channels = target.shape[1], target.shape[3]
            rows = codes.reshape(-1, heads, channels)
            target[0, :, end - len(rows) : end] = rows.swapaxes(0, 1)


class Int8Attention:
    """Binds the graph that suits the number of rows, at most `most_rows`. scales: [L, 2, K, D].

    One way to compute, whatever the number of rows: `is_uniform`.
    """

    def __init__(
        self,
        sessions: Mapping[str, ort.InferenceSession],
        scales: NDArray[np.float32],
        most_rows: int,
        is_uniform: bool,
    ) -> None:
        self._sessions = sessions
        self._scales = scales[:, :, None, :, None, :]  # of a layer and side: [1, K, 1, D]
        self._in_place_rows = 0 if is_uniform else IN_PLACE_ROWS
        # A chunk's codes are copied before the next chunk is run.
        self._codes = np.zeros((2, 1, most_rows, scales.shape[2] * scales.shape[3]), np.int8)

    def bind_layer(
        self, layer: int, inputs: Inputs, attended: NDArray[np.float32], columns: NDArray[np.int32]
    ) -> Binding | ChunkBinding:
        """inputs: all but the scales; attended [1, N, width]; columns: past ones and N, as the graph reads them."""
        rows = attended.shape[1]
        is_chunk = rows > self._in_place_rows
        session = self._sessions[ATTENTION_CHUNK if is_chunk else ATTENTION]
        bound = Binding(session, session.io_binding(), [])
        scales: Inputs = dict(zip(("key_scale", "value_scale"), self._scales[layer], strict=True))
        for name, array in (inputs | scales).items():
            bind(bound, bound.binding.bind_input, name, array)
        bind(bound, bound.binding.bind_output, "attended", attended)
        caches = inputs["past_key"], inputs["past_value"]
        outputs = (self._codes[0, :, :rows], self._codes[1, :, :rows]) if is_chunk else caches
        names = ("key_codes", "value_codes") if is_chunk else ("present_key", "present_value")
        for name, array in zip(names, outputs, strict=True):
            bind(bound, bound.binding.bind_output, name, array)
        return ChunkBinding(bound, outputs, caches, columns) if is_chunk else bound


class NonFiniteRows:
    """The rows of a pass whose keys or values hold infinity or NaN in some layer."""

    def __init__(self, buffers: RowBuffers) -> None:
        self._buffers = buffers
        self._found = np.zeros(0, np.bool_)
        self._keys = self._values = np.zeros(0, np.float32)  # of the layer at hand, all rows in one

    def start(self, rows: int) -> None:
        """Forget the pass before."""
        self._found = np.zeros(rows, np.bool_)
        self._keys, self._values = (self._buffers.rows(name, rows).reshape(-1) for name in ("key", "value"))

    def look(self) -> None:
        """Look at the keys and values that the layer at hand has just given. numpy may warn of their sum."""
        # Between two graphs every call costs microseconds, in each layer.
        if not isfinite(_sum(self._keys) + _sum(self._values)):  # rare; a sum may also just be too large
            for side in (self._keys, self._values):
                self._found |= ~np.isfinite(side.reshape(len(self._found), -1)).all(axis=1)

    def among(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `rows` [M]."""
        return np.asarray(rows[self._found[rows]], np.int64)
