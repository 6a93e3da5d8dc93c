"""The last stage: the finished bundle is run with onnxruntime and compared with the float reference."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.tensors import FLOATS, encoding_of
from engine.bundle.variant import StepShape, shape_of
from engine.compile.calibration.statistics import SLAB_ROWS, Interval, all_divergences, draw, interval, slabs
from engine.errors import CompileError
from engine.runtime.onnx_library import ort
from engine.runtime.tables import Tables, open_tables

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
Session: TypeAlias = ort.InferenceSession
Opener = Callable[[Path], Session]
MASKED = -1e9
SEED = 0  # of the confidence interval
ERROR_LOGGING = 3  # onnxruntime's severity: errors and worse


class PartChain:
    """The graphs of one shape, run one after the other. shape None = the free graphs; opener None = on the CPU."""

    def __init__(self, folder: Path, manifest: Manifest, shape: StepShape | None, opener: Opener | None = None) -> None:
        self.links = [(spec, open_session(folder / spec.file, opener)) for spec in graphs_of(manifest, shape)]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs of all parts by name; a part takes what it needs from the feeds and from the parts before."""
        known = dict(feeds)
        for spec, session in self.links:
            wanted = {tensor.name: known[tensor.name] for tensor in spec.inputs}
            names = [tensor.name for tensor in spec.outputs]
            known.update(zip(names, session.run(names, wanted), strict=True))
        return known


def _on_cpu(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = ERROR_LOGGING
    # Graphs run in turn: threads that spin for one session would take the processors of the next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Else products with dequantised weights round their inputs to 8 bits, also those of a graph of floats.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def open_session(path: Path, opener: Opener | None = None) -> Session:
    """A graph ready to run; opener None = on the CPU. CompileError when onnxruntime cannot load it."""
    try:
        return (opener or _on_cpu)(path)
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise CompileError(f"onnxruntime {ort.__version__} cannot load {path.name}: {str(error)[:300]}") from error


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

    Caches hold the computed columns only: keys [n_kv, 1, head_dim, T], values [n_kv, 1, T, head_dim]. masked: what
    the mask adds to a hidden column, as far as its type can say it.
    """

    chain: PartChain
    manifest: Manifest
    shape: StepShape | None
    keys: list[Array]
    values: list[Array]
    masked: float = MASKED
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
        mask = np.full((1, 1, shape.rows, shape.context), self.masked)
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


@dataclass(frozen=True, slots=True)
class Parity:
    """How near the graphs are to the reference over `tokens` positions.

    top1: share of positions with the same likeliest token. kl: mean KL(reference || graph) in nats, with its interval.
    relative_error: largest difference over the largest reference logit. cosine: the least of a position.
    """

    tokens: int
    top1: float
    kl: Interval
    relative_error: float
    cosine: float


def compare_logits(reference: Float32, measured: Float32) -> Parity:
    """Both [T, vocab]; CompileError when either side, or a figure of their comparison, is no finite number."""
    if not np.isfinite(reference).all():
        raise CompileError("the checkpoint itself gives logits that are not finite: its weights are damaged")
    if not np.isfinite(measured).all():
        raise CompileError("the compiled graphs gave logits that are not finite")
    with np.errstate(all="ignore"):  # what overflows is found below
        return _checked(_compared(reference, measured))


def _compared(reference: Float32, measured: Float32) -> Parity:
    count = len(reference)
    pairs = [(reference[start:stop], measured[start:stop]) for start, stop in slabs(count, SLAB_ROWS)]
    largest = max(float(np.abs(expected).max()) for expected, _ in pairs)
    return Parity(
        tokens=count,
        top1=float(np.mean(reference.argmax(axis=1) == measured.argmax(axis=1))),
        kl=mean_interval(all_divergences(reference, measured)),
        relative_error=max(float(np.abs(found - expected).max()) for expected, found in pairs) / (largest or 1.0),
        cosine=min(float(_cosines(*pair).min()) for pair in pairs),
    )


def mean_interval(values: NDArray[np.float64]) -> Interval:
    """The mean of a figure of neighbouring tokens [T], with its interval."""
    return interval(lambda places: float(values[places].mean()), len(values), draw([len(values)], SEED))


def _cosines(reference: Float32, measured: Float32) -> NDArray[np.float64]:
    """Of each position; 1 where both are nothing."""
    first, second = reference.astype(np.float64), measured.astype(np.float64)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    products: NDArray[np.float64] = np.sum(first * second, axis=1)
    cosines = np.ones_like(products)
    np.divide(products, lengths, out=cosines, where=lengths > 0)
    return cosines


def _checked(parity: Parity) -> Parity:
    # A limit is never passed by what is no number.
    if not all(map(math.isfinite, (parity.top1, parity.kl.value, parity.relative_error, parity.cosine))):
        raise CompileError(f"the comparison with the checkpoint gave no finite figures: {parity}")
    return parity


def bundle_logits(
    folder: Path,
    manifest: Manifest,
    texts: Sequence[Sequence[int]],
    opener: Opener | None = None,
    tables: Path | None = None,
) -> Float32:
    """Logits [all tokens, vocab] of texts in passes of the most rows there are.

    A text takes two passes at least, so that the cache is read too; one where there is none. tables: the folder of the
    table that tokens are looked up in, None = the same.
    """
    shape = widest_shape(manifest)
    chain = PartChain(folder, manifest, shape, opener)
    pieces = []
    for tokens in texts:
        sequence = ChainedSequence.on(chain, manifest, shape, open_tables(tables or folder, manifest))
        part = len(tokens) if manifest.reads_whole_context else len(tokens) // 2
        step = max(1, min(shape.rows if shape else len(tokens), part))
        pieces += [sequence.extend(tokens[start : start + step]) for start in range(0, len(tokens), step)]
    return np.concatenate(pieces)


def widest_shape(manifest: Manifest) -> StepShape | None:
    """Of the fixed shapes with the most rows the one with the most columns; None when the graphs are free."""
    shapes = [shape_of(graph) for graph in manifest.graphs if graph.kind in (GraphKind.DECODER, GraphKind.DEFAULT)]
    return max((item for item in shapes if item is not None), default=None)
