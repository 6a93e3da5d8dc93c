"""A pool bundle in the plainest way, with onnxruntime alone: its graphs without the runtime that serves them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.tensors import FLOATS, encoding_of
from engine.bundle.variant import StepShape, shape_of
from engine.compile.check.parity import plain_cpu
from engine.runtime.embedded import Tables

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
Opener = Callable[[Path], onnxruntime.InferenceSession]


class PartChain:
    """The graphs of one shape, run one after the other. shape None = the free graphs."""

    def __init__(self, folder: Path, manifest: Manifest, shape: StepShape | None, opener: Opener | None = None) -> None:
        self.links = [(spec, (opener or plain_cpu().open)(folder / spec.file)) for spec in graphs_of(manifest, shape)]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs of all parts by name; a part takes what it needs from the feeds and from the parts before."""
        known = dict(feeds)
        for spec, session in self.links:
            wanted = {tensor.name: known[tensor.name] for tensor in spec.inputs}
            names = [tensor.name for tensor in spec.outputs]
            known.update(zip(names, session.run(names, wanted), strict=True))
        return known


def graphs_of(manifest: Manifest, shape: StepShape | None) -> list[GraphSpec]:
    """The graph of every part for one shape, in order."""
    chosen: dict[int, GraphSpec] = {}
    for graph in manifest.graphs:
        if graph.kind is GraphKind.DECODER_PREFILL:  # it gives no logits
            continue
        fits = shape_of(graph) == shape if graph.kind in (GraphKind.DECODER, GraphKind.DEFAULT) else True
        if fits and graph.rows == (shape.rows if shape else None):
            chosen[graph.part] = graph
    return [chosen[part] for part in sorted(chosen)]


@dataclass(slots=True)
class ChainedSequence:
    """One sequence with its own growing cache: the plainest way to use a bundle.

    Caches hold the computed columns only: keys [n_kv, 1, head_dim, T], values [n_kv, 1, T, head_dim].
    """

    chain: PartChain
    manifest: Manifest
    shape: StepShape | None
    keys: list[Array]
    values: list[Array]
    tables: Tables = field(default_factory=dict)

    @classmethod
    def start(cls, folder: Path, manifest: Manifest, shape: StepShape | None) -> "ChainedSequence":
        """An empty sequence on the graphs of one shape."""
        return cls.on(PartChain(folder, manifest, shape), manifest, shape)

    @classmethod
    def on(
        cls, chain: PartChain, manifest: Manifest, shape: StepShape | None, tables: Tables | None = None
    ) -> "ChainedSequence":
        """An empty sequence on opened graphs."""
        model, dtype = manifest.model, np.dtype(manifest.kv_dtype)
        layers = 0 if manifest.reads_whole_context else model.layers
        keys: list[Array] = [np.zeros((model.kv_heads, 1, model.head_dim, 0), dtype) for _ in range(layers)]
        values: list[Array] = [np.zeros((model.kv_heads, 1, 0, model.head_dim), dtype) for _ in range(layers)]
        return cls(chain, manifest, shape, keys, values, tables=tables or {})

    def extend(self, tokens: Sequence[int]) -> Float32:
        """Run tokens, at most `shape.rows` of them; logits [len(tokens), vocab]. Their KV joins the cache."""
        logits = self.advance(tokens)["logits"][0, : len(tokens)]
        spec = next(tensor for graph, _ in self.chain.links for tensor in graph.outputs if tensor.name == "logits")
        return encoding_of(spec).decode(logits)

    def advance(self, tokens: Sequence[int]) -> dict[str, Array]:
        """As `extend`, but all outputs of all parts as they are."""
        count, cached = len(tokens), self.keys[0].shape[3] if self.keys else 0
        shape = self.shape or StepShape(count, cached)
        outputs = self.chain.run(self.feeds(tokens, shape, cached))
        for layer in range(len(self.keys)):
            fresh_key, fresh_value = outputs[f"past_key_{layer}_out"], outputs[f"past_value_{layer}_out"]
            self.keys[layer] = np.concatenate([self.keys[layer], fresh_key[..., :count]], axis=3)
            self.values[layer] = np.concatenate([self.values[layer], fresh_value[:, :, :count]], axis=2)
        return outputs

    def feeds(self, tokens: Sequence[int], shape: StepShape, cached: int) -> dict[str, Array]:
        """Inputs of one pass over `cached` columns. Unused rows look at themselves, unused columns are masked."""
        count, rope = len(tokens), self.manifest.model.rope
        ids = np.zeros((1, shape.rows), np.int32)
        ids[0, :count] = tokens
        mask = np.full((1, 1, shape.rows, shape.context), -np.inf)
        mask[..., :count, :cached] = 0
        mask[0, 0, :count, shape.past : shape.past + count][np.tri(count, dtype=bool)] = 0
        own = np.arange(count, shape.rows)
        mask[0, 0, own, shape.past + own] = 0
        positions = np.zeros(shape.rows)
        positions[:count] = cached + np.arange(count)
        angles = positions[:, None] * np.array(rope.inverse_frequencies)
        encodings = {
            tensor.name: encoding_of(tensor)
            for graph, _ in self.chain.links
            for tensor in graph.inputs
            if tensor.name != "input_ids"
        }
        reals = {
            "attention_mask": np.maximum(mask, FLOATS.get(encodings["attention_mask"].dtype, -np.inf)),
            "position_ids_cos": (np.cos(angles) * rope.factor)[None, None],
            "position_ids_sin": (np.sin(angles) * rope.factor)[None, None],
        }
        feeds: dict[str, Array] = {name: encodings[name].encode(values) for name, values in reals.items()}
        feeds["input_ids"] = ids
        for name, encoding in encodings.items():
            if name in self.tables:
                feeds[name] = np.empty((1, shape.rows, self.manifest.model.hidden), encoding.dtype)
                self.tables[name].fill(ids[0], feeds[name][0], encoding)
        unused = shape.past - cached
        for layer, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            for name, cache, axis in ((f"past_key_{layer}_in", key, 3), (f"past_value_{layer}_in", value, 2)):
                widths = [(0, unused if index == axis else 0) for index in range(4)]
                feeds[name] = np.pad(cache, widths, constant_values=encodings[name].zero_point)
        return feeds
