"""Attention over caches of either type while a bundle is compiled, and the scales of int8 ones, measured on text.

Legend: L = layers, 2 = keys and values, K = KV heads, D = head size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Array
from engine.bundle.kv_scales import LEAST, ROUNDED, scales_shape
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, ModelSpec
from engine.bundle.segments import ATTENTION, FLOAT
from engine.compile.arguments import QualityLevel
from engine.compile.compilation import Compilation
from engine.compile.graph_builder import GraphBuilder
from engine.compile.parity import Session, open_session
from engine.compile.segments.graphs import attention_graph
from engine.compile.segments.int8_attention import int8_attention_graphs
from engine.compile.segments.parity import AttentionGraphs, record_caches
from engine.compile.texts.documents import calibration_documents
from engine.compile.texts.sequences import token_sequences
from engine.models.network import Network

Float32 = NDArray[np.float32]
TEXTS = 32
HIGHEST_CODE = 127


@dataclass(frozen=True, slots=True)
class CacheReading:
    """tokens: of each text. margin: what other text may reach beyond all of them."""

    tokens: int
    margin: float


# A channel that the texts do not show at its largest is cut off in every answer. A quarter of the tokens shows less.
QUICK, THOROUGH = CacheReading(32, 1.5), CacheReading(128, 1.2)


def measured_scales(work: Compilation, draft: Manifest) -> Float32:
    """Scales [L, 2, K, D] of int8 caches, from calibration text over float ones, which parity does not use."""
    text = draft.text
    reading = QUICK if work.arguments.quality is QualityLevel.FAST else THOROUGH
    length = min(reading.tokens, work.network.compiled_context)
    documents = calibration_documents(work.arguments.source, work.arguments.calibration, work.folder, text)
    texts = token_sequences(documents, work.folder, text, work.network.spec.vocab, length, TEXTS)
    work.progress.stage("cache scales", len(work.network.spec.attention_layers) * len(texts), "texts")
    reach = KvReach(work.network.spec)

    def record(layer: int, keys: Array, values: Array) -> None:
        reach.add(layer, keys, values)
        work.progress.advance(1)

    record_caches(work.folder, draft, texts, float_attention(work.network), record)
    return reach.scales(reading.margin)


class KvReach:
    """The largest magnitude [L, 2, K, D] of each channel over all text seen.

    A rotated channel and its partner turn into each other from position to position, so both reach their radius.
    """

    def __init__(self, model: ModelSpec) -> None:
        self._half = model.rope.rotary_dim // 2
        self._most = np.zeros(scales_shape(model), np.float32)

    def add(self, layer: int, keys: Array, values: Array) -> None:
        """Keys and values [1, K, columns, D] of a text."""
        half = self._half
        sizes = np.abs(np.stack([keys[0], values[0]]))  # [2, K, columns, D]
        radius = np.hypot(sizes[0, ..., :half], sizes[0, ..., half : 2 * half])
        sizes[0, ..., :half] = sizes[0, ..., half : 2 * half] = radius
        np.maximum(self._most[layer], sizes.max(axis=2), out=self._most[layer])

    def scales(self, margin: float) -> Float32:
        """[L, 2, K, D]: what one code stands for. A channel that was always 0 gets the largest of its head."""
        scales = self._most * np.float32(margin / HIGHEST_CODE)
        scales = np.where(scales < LEAST, scales.max(axis=3, keepdims=True), scales)
        return np.where(scales < LEAST, np.float32(1.0), scales).astype(np.float32)


def float_attention(network: Network) -> AttentionGraphs:
    """Attention over float caches."""
    return AttentionGraphs(_opened({ATTENTION: attention_graph(network)}), FLOAT)


def int8_attention(network: Network, scales: Float32) -> AttentionGraphs:
    """Attention over int8 caches of such scales [L, 2, K, D]."""
    return AttentionGraphs(_opened(int8_attention_graphs(network)), ROUNDED, scales)


def _opened(graphs: Mapping[str, GraphBuilder]) -> dict[str, tuple[GraphSpec, Session]]:
    opened = {}
    with TemporaryDirectory() as folder:
        for name, graph in graphs.items():
            inputs, outputs = tuple(graph.inputs), tuple(graph.outputs)
            spec = GraphSpec(name, f"{name}.onnx", GraphKind.ATTENTION, 1, 1, inputs, outputs)
            path = Path(folder) / spec.file
            path.write_bytes(graph.model(name).SerializeToString())
            opened[name] = spec, open_session(path)
    return opened
