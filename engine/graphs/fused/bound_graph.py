"""One fused graph with its buffers, bound to whatever caches a pass has.

Legend: N = rows, L = layers, K = KV heads, H = head size, D = decode slots, V = vocabulary.
"""

from collections.abc import Sequence

import numpy as np

from engine.bundle.encoding import Array, Encoding, encoding_of
from engine.bundle.fused import FusedShape, cache_tensors, fresh_tensors, fused_shape
from engine.bundle.manifest import GraphSpec, Manifest
from engine.graphs.fused.caches import FusedCache
from engine.graphs.fused.inputs import FusedInputs
from engine.graphs.onnx_binding import Binding, bind
from engine.graphs.onnx_library import ort

KEPT_BINDINGS = 64


class BoundGraph:
    """keys [L, K, 1, H, N] and values [L, K, 1, N, H] of a pass's rows; logits [1, D + 1, V], or [1, D, V]."""

    def __init__(self, manifest: Manifest, graph: GraphSpec, session: ort.InferenceSession) -> None:
        model, dtype = manifest.model, np.dtype(manifest.kv_dtype)
        self.shape: FusedShape = fused_shape(graph.name)
        self.inputs = FusedInputs(manifest, graph)
        lead = (model.layers, model.kv_heads, 1)
        self.keys: Array = np.empty((*lead, model.head_dim, self.shape.rows), dtype)
        self.values: Array = np.empty((*lead, self.shape.rows, model.head_dim), dtype)
        (logits,) = (tensor for tensor in graph.outputs if tensor.name == "logits")
        self.logits: Array = np.empty([int(size) for size in logits.shape], logits.dtype)
        self.encoding: Encoding = encoding_of(logits)
        self._session = session
        self._bindings: dict[tuple[int, ...], Binding] = {}

    def run(self, caches: Sequence[FusedCache], updated: Sequence[FusedCache]) -> None:
        """Run over caches in the order of `FusedShape.caches`, and write the updated ones to `updated`, () = nowhere.

        An updated cache may be the cache itself. Raises what onnxruntime raises.
        """
        key = (*(cache.serial for cache in caches), *(cache.serial for cache in updated))
        found = self._bindings.pop(key, None) or self._bind(caches, updated)
        self._bindings[key] = found
        if len(self._bindings) > KEPT_BINDINGS:
            del self._bindings[next(iter(self._bindings))]
        found.run()

    def clear(self) -> None:
        """Drop the bindings: none may outlive what it points to."""
        self._bindings.clear()

    def _bind(self, caches: Sequence[FusedCache], updated: Sequence[FusedCache]) -> Binding:
        bound = Binding(self._session, self._session.io_binding(), [])
        outputs: dict[str, Array] = {"logits": self.logits}
        for layer in range(len(self.keys)):
            outputs |= zip(fresh_tensors(layer), (self.keys[layer], self.values[layer]), strict=True)
        inputs = self.inputs.arrays | self._tensors("past", caches)
        outputs |= self._tensors("updated_past", updated)
        for name, array in inputs.items():
            bind(bound, bound.binding.bind_input, name, array)
        for name, array in outputs.items():
            bind(bound, bound.binding.bind_output, name, array)
        return bound

    def _tensors(self, kind: str, caches: Sequence[FusedCache]) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for label, cache in zip(self.shape.caches, caches, strict=bool(caches)):
            for layer, arrays in enumerate(zip(cache.keys, cache.values, strict=True)):
                found |= zip(cache_tensors(kind, label, layer), arrays, strict=True)
        return found
