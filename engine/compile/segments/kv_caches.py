"""int8 caches of a segmented bundle: their scales, from text that parity does not use, and what they lose.

Legend: L = layers, 2 = keys and values, K = KV heads, D = head size.
"""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Array
from engine.bundle.kv_scales import KV_SCALES, LEAST, scales_shape, write_kv_scales
from engine.bundle.manifest import GraphKind, GraphSpec, ModelSpec, describe_file
from engine.bundle.segments import ATTENTION
from engine.compile.arguments import KvType, QualityLevel
from engine.compile.compilation import Compilation
from engine.compile.description import describe
from engine.compile.layout import WIDE_ROWS, kv_type
from engine.compile.parity import open_session
from engine.compile.segments.graphs import attention_graph
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


def kv_scales_stage(work: Compilation) -> None:
    """Run calibration text over float caches and write the scales of int8 ones, if the bundle has such."""
    if kv_type(work.arguments) is not KvType.INT8:
        return
    draft, text = describe(work), work.text
    assert text is not None
    reading = QUICK if work.arguments.quality is QualityLevel.FAST else THOROUGH
    length = min(reading.tokens, work.network.compiled_context)
    documents = calibration_documents(work.arguments.source, work.arguments.calibration, work.folder, text)
    texts = token_sequences(documents, work.folder, text, work.network.spec.vocab, length, TEXTS)
    work.progress.stage("cache scales", len(work.network.spec.attention_layers) * len(texts), "texts")
    reach = KvReach(work.network.spec)

    def record(layer: int, keys: Array, values: Array) -> None:
        reach.add(layer, keys, values)
        work.progress.advance(1)

    least_rows = 1 if work.wide is None else WIDE_ROWS
    record_caches(work.folder, draft, texts, least_rows, float_attention(work.network), record)
    write_kv_scales(work.folder, reach.scales(reading.margin))
    work.files[KV_SCALES] = describe_file(work.folder / KV_SCALES)


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
    """Attention over float caches, which a bundle with int8 ones has no graph for."""
    graph = attention_graph(network)
    inputs, outputs = tuple(graph.inputs), tuple(graph.outputs)
    spec = GraphSpec(ATTENTION, f"{ATTENTION}.onnx", GraphKind.ATTENTION, 1, 1, inputs, outputs)
    with TemporaryDirectory() as folder:
        path = Path(folder) / spec.file
        path.write_bytes(graph.model(spec.name).SerializeToString())
        return AttentionGraphs({ATTENTION: (spec, open_session(path))}, "float32")
