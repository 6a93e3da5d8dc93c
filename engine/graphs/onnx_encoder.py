"""Runs the graphs of an encoder's bundle: one for each number of rows, bound to buffers of its own."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoder import COS, HIDDEN, IDS, MASK, POSITIONS, SIN, TYPES, encoder_of, encoder_rows
from engine.bundle.encoding import Array, encoding_of
from engine.bundle.manifest import GraphSpec, Manifest
from engine.encoders.batch import EncoderBatch
from engine.errors import PassFailed
from engine.graphs.onnx_binding import Binding, bind_all
from engine.graphs.onnx_library import ort
from engine.graphs.onnx_sessions import Provider, load_sessions
from engine.graphs.rotary import RotaryTable


@dataclass(frozen=True, slots=True)
class _Variant:
    """The graph of one number of rows. mask_codes: of a column that is hidden, then of one that is seen."""

    graph: GraphSpec
    binding: Binding
    inputs: dict[str, Array]
    output: Array
    mask_codes: Array


class EncoderRuntime:
    """Implements `Encoder` for any provider. Raises BundleError when a graph cannot be loaded."""

    def __init__(self, folder: Path, manifest: Manifest, provider: Provider) -> None:
        spec = encoder_of(manifest)
        self.device, self.rows = provider.device, encoder_rows(manifest)
        self._offset = spec.position_offset
        self._sessions = load_sessions(folder, manifest, provider)
        self._variants = {graph.rows: _bound(graph, self._sessions[graph.name]) for graph in manifest.graphs}
        self._rotary = {
            tensor.name: RotaryTable(manifest.model.rope, tensor.name == COS, encoding_of(tensor))
            for tensor in manifest.graphs[0].inputs
            if tensor.name in (COS, SIN)
        }

    def run(self, batch: EncoderBatch) -> NDArray[np.float32]:
        """Hidden states [N, H] of the batch's rows. PassFailed when onnxruntime raises."""
        variant = self._variants[len(batch.ids)]
        self._fill(variant, batch)
        try:
            variant.binding.run()
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            raise PassFailed(f"graph {variant.graph.name} failed: {str(error)[:300]}") from error
        return encoding_of(variant.graph.outputs[0]).decode(variant.output[0])

    def close(self) -> None:
        """Drop bindings, then sessions: a binding must not outlive what it points to."""
        self._variants.clear()
        self._sessions.clear()

    def _fill(self, variant: _Variant, batch: EncoderBatch) -> None:
        inputs = variant.inputs
        inputs[IDS][0] = batch.ids
        inputs[TYPES][0] = batch.types
        inputs[MASK][0, 0] = variant.mask_codes[batch.visible.astype(np.int8)]
        if POSITIONS in inputs:
            inputs[POSITIONS][0] = batch.places + self._offset
        for name, table in self._rotary.items():
            table.fill(batch.places, inputs[name][0, 0])


def _bound(graph: GraphSpec, session: ort.InferenceSession) -> _Variant:
    buffers: dict[str, Array] = {}
    for tensor in (*graph.inputs, *graph.outputs):
        shape = [size for size in tensor.shape if isinstance(size, int)]  # all of them: shapes are fixed
        buffers[tensor.name] = np.zeros(shape, tensor.dtype)
    output = buffers.pop(HIDDEN)
    mask = next(tensor for tensor in graph.inputs if tensor.name == MASK)
    codes = encoding_of(mask).mask_codes()
    return _Variant(graph, bind_all(session, buffers, {HIDDEN: output}), buffers, output, codes)
