"""The LM head as graphs of their own, bound to fixed buffers: only rows that need logits go through it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TensorSpec
from engine.bundle.tensors import Array, Encoding, encoding_of
from engine.bundle.weight_files import weight_input
from engine.runtime.buffers import Arena
from engine.runtime.interface import Logits
from engine.runtime.onnx_library import ort
from engine.runtime.sessions import Binding, bind_all


@dataclass(slots=True)
class _BoundHead:
    """One head in one width: hidden rows [1, W, H] in, logits [1, W, V] out."""

    bound: Binding
    hidden: Array
    logits: Array
    encoding: Encoding


class LmHead:
    """The head graphs of a bundle; some have none, because their last part gives logits itself.
    weight: what graphs take that do not hold their own; bound once for each width."""

    def __init__(
        self,
        manifest: Manifest,
        sessions: Mapping[str, ort.InferenceSession],
        arena: Arena,
        weight: Array | None = None,
    ) -> None:
        self.weight = weight
        graphs = [graph for graph in manifest.graphs if graph.kind is GraphKind.LMHEAD]
        self._graphs = sorted(graphs, key=lambda graph: (graph.rows is None, graph.rows or 0))
        self._sessions = sessions
        self._arena = arena
        self._bound: dict[int, _BoundHead] = {}  # by width

    def __bool__(self) -> bool:
        return bool(self._graphs)

    def logits(self, hidden: Array, least: int) -> Logits:
        """Logits [R, V] of hidden rows [R, H] as the layers gave them; valid until the next call.
        The smallest graph that takes all rows at once runs, else the largest runs several times. least: rows it must
        take although there may be fewer: how a row rounds may depend on the width."""
        bound, width = self._fitting(max(len(hidden), least))
        if len(hidden) <= width:
            return self._run(bound, hidden)
        starts = range(0, len(hidden), width)
        pieces = [self._run(bound, hidden[start : start + width]).codes.copy() for start in starts]
        return Logits(np.concatenate(pieces), bound.encoding)

    def clear(self) -> None:
        self._bound.clear()

    def _run(self, head: _BoundHead, hidden: Array) -> Logits:
        head.hidden[0, : len(hidden)] = hidden
        head.hidden[0, len(hidden) :] = 0
        head.bound.run()
        return Logits(head.logits[0, : len(hidden)], head.encoding)

    def _fitting(self, rows: int) -> tuple[_BoundHead, int]:
        graph = next((graph for graph in self._graphs if graph.rows is None or graph.rows >= rows), self._graphs[-1])
        width = rows if graph.rows is None else graph.rows
        if width not in self._bound:
            self._bound[width] = self._bind(graph, width)
        return self._bound[width], width

    def _bind(self, graph: GraphSpec, width: int) -> _BoundHead:
        weight, (given,) = weight_input(graph), graph.outputs
        (taken,) = (tensor for tensor in graph.inputs if tensor is not weight)
        hidden, logits = self._buffer("head hidden", taken, width), self._buffer("head logits", given, width)
        inputs = {taken.name: hidden}
        if weight is not None:
            assert self.weight is not None, "a bundle that was checked has the file"
            inputs[weight.name] = self.weight
        bound = bind_all(graph.name, self._sessions[graph.name], inputs, {given.name: logits})
        return _BoundHead(bound, hidden, logits, encoding_of(given))

    def _buffer(self, name: str, tensor: TensorSpec, width: int) -> Array:
        """[1, W, ...] of memory that grows by doubling: what it outgrew stays with the bindings made before."""
        roomy = 1 << (width - 1).bit_length()
        return self._arena.array(name, (1, roomy, int(tensor.shape[-1])), np.dtype(tensor.dtype))[:, :width]
