"""The last stage: the finished bundle is run with onnxruntime and compared with the float reference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.variant import PassShape, shape_of
from engine.errors import CompileError

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
MASKED = -1e9
ERROR_LOGGING = 3  # onnxruntime's severity: errors and worse


class PartChain:
    """The graphs of one shape, run one after the other. shape None = the free graphs."""

    def __init__(self, folder: Path, manifest: Manifest, shape: PassShape | None) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = ERROR_LOGGING
        self.links = [(spec, _open(folder / spec.file, options)) for spec in graphs_of(manifest, shape)]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs of all parts by name; a part takes what it needs from the feeds and from the parts before."""
        known = dict(feeds)
        for spec, session in self.links:
            wanted = {tensor.name: known[tensor.name] for tensor in spec.inputs}
            names = [tensor.name for tensor in spec.outputs]
            known.update(zip(names, session.run(names, wanted), strict=True))
        return known


def _open(path: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise CompileError(f"onnxruntime {ort.__version__} cannot load {path.name}: {str(error)[:300]}") from error


def graphs_of(manifest: Manifest, shape: PassShape | None) -> list[GraphSpec]:
    """The graph of every part for one shape, in order."""
    chosen: dict[int, GraphSpec] = {}
    for graph in manifest.graphs:
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
    shape: PassShape | None
    keys: list[Float32]
    values: list[Float32]

    @classmethod
    def start(cls, folder: Path, manifest: Manifest, shape: PassShape | None) -> "ChainedSequence":
        """An empty sequence on the graphs of one shape."""
        model, dtype = manifest.model, np.dtype(manifest.kv_dtype)
        keys = [np.zeros((model.kv_heads, 1, model.head_dim, 0), dtype) for _ in range(model.layers)]
        values = [np.zeros((model.kv_heads, 1, 0, model.head_dim), dtype) for _ in range(model.layers)]
        return cls(PartChain(folder, manifest, shape), manifest, shape, keys, values)

    def extend(self, tokens: Sequence[int]) -> Float32:
        """Run tokens, at most `shape.rows` of them; logits [len(tokens), vocab]. Their KV joins the cache."""
        count, cached = len(tokens), self.keys[0].shape[3]
        shape = self.shape or PassShape(count, cached)
        outputs = self.chain.run(self.feeds(tokens, shape, cached))
        for layer in range(self.manifest.model.layers):
            fresh_key, fresh_value = outputs[f"past_key_{layer}_out"], outputs[f"past_value_{layer}_out"]
            self.keys[layer] = np.concatenate([self.keys[layer], fresh_key[..., :count]], axis=3)
            self.values[layer] = np.concatenate([self.values[layer], fresh_value[:, :, :count]], axis=2)
        return outputs["logits"][0, :count].astype(np.float32)

    def feeds(self, tokens: Sequence[int], shape: PassShape, cached: int) -> dict[str, Array]:
        """Inputs of one pass over `cached` columns. Unused rows look at themselves, unused columns are masked."""
        count, rope, dtype = len(tokens), self.manifest.model.rope, np.dtype(self.manifest.kv_dtype)
        ids = np.zeros((1, shape.rows), np.int32)
        ids[0, :count] = tokens
        mask = np.full((1, 1, shape.rows, shape.context), MASKED, np.float32)
        mask[..., :count, :cached] = 0
        mask[0, 0, :count, shape.past : shape.past + count][np.tri(count, dtype=bool)] = 0
        own = np.arange(count, shape.rows)
        mask[0, 0, own, shape.past + own] = 0
        positions = np.zeros(shape.rows)
        positions[:count] = cached + np.arange(count)
        angles = positions[:, None] * np.array(rope.inverse_frequencies)
        feeds: dict[str, Array] = {
            "input_ids": ids,
            "attention_mask": np.maximum(mask, np.finfo(dtype).min / 2).astype(dtype),
            "position_ids_cos": (np.cos(angles) * rope.factor)[None, None].astype(dtype),
            "position_ids_sin": (np.sin(angles) * rope.factor)[None, None].astype(dtype),
        }
        unused = shape.past - cached
        for layer, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            feeds[f"past_key_{layer}_in"] = np.pad(key, ((0, 0), (0, 0), (0, 0), (0, unused)))
            feeds[f"past_value_{layer}_in"] = np.pad(value, ((0, 0), (0, 0), (0, unused), (0, 0)))
        return feeds


@dataclass(frozen=True, slots=True)
class Parity:
    """How near the graphs are to the reference over `tokens` positions.

    top1: share of positions with the same likeliest token. kl: mean KL(reference || graph) in nats.
    relative_error: largest difference over the largest reference logit.
    """

    tokens: int
    top1: float
    kl: float
    relative_error: float


def compare_logits(reference: Float32, measured: Float32) -> Parity:
    """Both [T, vocab]; CompileError when the graphs gave something that is no number."""
    if not np.isfinite(measured).all():
        raise CompileError("the compiled graphs gave logits that are not finite")
    expected, found = _log_softmax(reference), _log_softmax(measured)
    divergence = np.sum(np.exp(expected) * (expected - found), axis=1)
    return Parity(
        tokens=len(reference),
        top1=float(np.mean(reference.argmax(axis=1) == measured.argmax(axis=1))),
        kl=float(max(divergence.mean(), 0.0)),
        relative_error=float(np.abs(measured - reference).max() / np.abs(reference).max()),
    )


def bundle_logits(folder: Path, manifest: Manifest, tokens: Sequence[int]) -> Float32:
    """Logits of a text through the bundle: about half in one pass, the rest over the cache it leaves."""
    shapes = [shape_of(graph) for graph in manifest.graphs if graph.kind in (GraphKind.DECODER, GraphKind.DEFAULT)]
    shape = max((item for item in shapes if item is not None), key=lambda item: (item.past, item.rows), default=None)
    sequence = ChainedSequence.start(folder, manifest, shape)
    step = max(1, min(shape.rows if shape else len(tokens), len(tokens) // 2))
    return np.concatenate([sequence.extend(tokens[start : start + step]) for start in range(0, len(tokens), step)])


def _log_softmax(logits: Float32) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
