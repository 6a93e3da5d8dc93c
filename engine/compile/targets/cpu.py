"""The stages of a segmented bundle, and the choice of its caches: int8 where that loses next to nothing, else floats.

Legend: L = layers with keys and values, 2 = keys and values, K = KV heads, D = head size.
"""

from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from engine.bundle.manifest import GraphKind, Manifest, describe_file
from engine.bundle.model_spec import ModelSpec
from engine.bundle.segments import LINEAR_DATA, RECURRENT, SHARED_DATA
from engine.bundle.tensors import Array
from engine.bundle.variant import StepShape
from engine.bundle.weight_files import FLOAT_BYTES, KV_SCALES, LEAST, scales_shape, write_floats
from engine.compile.arguments import KvType, QualityLevel
from engine.compile.check.parity import Interval, bundle_logits, compare_logits, plain_cpu
from engine.compile.compilation import Compilation, describe, packing
from engine.compile.graphs.attention import attention_graphs, masked_attention_graphs
from engine.compile.graphs.graph_builder import GraphBuilder
from engine.compile.graphs.layers import lora_modules
from engine.compile.graphs.recurrence import recurrent_graph
from engine.compile.graphs.segments import linear_graph
from engine.compile.plan import float_kv, tries_int8
from engine.compile.quantisation.methods.table import is_exact
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import Float32
from engine.compile.targets.measure import baseline_figures, check_exact, float_logits, held_out_texts, parity_figures
from engine.isolation.machine import usable_memory
from engine.runtime.reading import read_rows, reading_shapes
from engine.runtime.segmented import SegmentRuntime

NEXT_TO_NOTHING = 0.05  # of what the weights lose
LEAST_LOSS = 5e-3  # nats, of weights: int8 caches of real models lose 10 times its twentieth, or more
MEMORY_SHARE = 0.5  # of the machine, for weights and the float caches of one sequence


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """Bytes. caches: float ones of one sequence of full length. weights: as stored. machine: 0 = not known."""

    caches: int
    weights: int
    machine: int

    @property
    def is_short(self) -> bool:
        """Whether float caches of even one sequence are too much."""
        return bool(self.machine) and self.caches + self.weights > MEMORY_SHARE * self.machine


def settled_kv(weights_loss: float, memory: CacheMemory, floats: KvType) -> str:
    """Why caches are `floats` whatever int8 ones would lose; '' where that has to be measured."""
    if weights_loss >= LEAST_LOSS or memory.is_short:
        return ""
    return f"keys and values are {floats}: int8 ones would lose too much beside weights whose KL is {weights_loss:.1e}"


def choose_kv(weights_loss: float, caches_loss: Interval, memory: CacheMemory, floats: KvType) -> tuple[KvType, str]:
    """The type, and the reason with its figures. Losses are mean KL [nats]: of the graphs over float caches against the
    float model, and of the same graphs over int8 caches against float ones. floats: the type of those."""
    share = caches_loss.value / weights_loss if weights_loss else float("inf")
    interval = f"{caches_loss.low:.1e} to {caches_loss.high:.1e}"
    told = f"int8 ones lose KL {caches_loss.value:.1e} ({interval}), {100 * share:.0f} % of what the weights lose"
    if share <= NEXT_TO_NOTHING:
        return KvType.INT8, f"keys and values are int8: {told}"
    if memory.is_short:
        sizes = f"{memory.caches / 1e9:.1f} GB beside weights of {memory.weights / 1e9:.1f} GB"
        there = f"{floats} ones of one long sequence take {sizes}, the machine has {memory.machine / 1e9:.1f} GB"
        return KvType.INT8, f"keys and values are int8 although {told}: {there} (--kv {floats} keeps them nearer)"
    return floats, f"keys and values are {floats}: {told} (--kv int8 takes less memory)"


TEXTS = 32
HIGHEST_CODE = 127


# Tokens of each text, and what other text may reach beyond all of them: a channel that the texts do not show at its
# largest is cut off in every answer. A quarter of the tokens shows less.
QUICK, THOROUGH = (32, 1.5), (128, 1.2)


def measured_scales(work: Compilation, manifest: Manifest) -> Float32:
    """Scales [L, 2, K, D] of int8 caches, from calibration text over float ones, which parity does not use."""
    tokens_of_text, margin = QUICK if work.arguments.quality is QualityLevel.FAST else THOROUGH
    length = min(tokens_of_text, work.network.compiled_context)
    texts = work.calibration_texts(length, TEXTS)
    work.progress.stage("cache scales", len(texts), "texts")
    reach, layers = KvReach(work.network.spec), range(len(work.network.spec.attention_layers))
    shapes = reading_shapes(manifest, length)
    with closing(SegmentRuntime(work.folder, manifest, shapes, plain_cpu())) as runtime:
        for tokens in texts:
            read_rows(runtime, StepShape(length, 0), tokens, 0, (), is_kept=False)
            for layer in layers:
                reach.add(layer, *runtime.written(layer))
            work.progress.advance(1)
    return reach.scales(margin)


class KvReach:
    """The largest magnitude [L, 2, K, D] of each channel over all text seen. A rotated channel and its partner turn
    into each other from position to position, so both reach their radius."""

    def __init__(self, model: ModelSpec) -> None:
        ropes = [model.rope_of(layer) for layer in model.attention_layers]
        self._turned = [rope.rotary_dim if rope else 0 for rope in ropes]
        self._has_neighbours = model.rope.is_interleaved
        self._most = np.zeros(scales_shape(model), np.float32)

    def add(self, layer: int, keys: Array, values: Array) -> None:
        """Keys and values [1, K, columns, D] of a text."""
        turned = self._turned[layer]
        sizes = np.abs(np.stack([keys[0], values[0]]).astype(np.float32))  # [2, K, columns, D]
        places = np.arange(turned).reshape((-1, 2) if self._has_neighbours else (2, -1))
        first, second = places.T if self._has_neighbours else places
        radius = np.hypot(sizes[0][..., first], sizes[0][..., second])
        sizes[0][..., first] = sizes[0][..., second] = radius
        np.maximum(self._most[layer], sizes.max(axis=2), out=self._most[layer])

    def scales(self, margin: float) -> Float32:
        """[L, 2, K, D]: what one code stands for. A channel that was always 0 gets the largest of its head."""
        scales = self._most * np.float32(margin / HIGHEST_CODE)
        scales = np.where(scales < LEAST, scales.max(axis=3, keepdims=True), scales)
        return np.where(scales < LEAST, np.float32(1.0), scales).astype(np.float32)


def segment_losses_stage(work: Compilation) -> None:
    """Run the bundle over float caches against the float reference, then, unless told otherwise, over int8 ones. The
    attention graphs and the figures of the caches that are chosen are what is kept."""
    asked, tries = work.arguments.kv, tries_int8(work.arguments)
    context, spec = work.network.compiled_context, work.network.spec
    weights = sum(entry.bytes for entry in work.files.values())
    memory = CacheMemory(context * spec.cache_numbers * FLOAT_BYTES, weights, usable_memory())
    is_float = is_exact(work.arguments)
    float_type = KvType.FLOAT32 if is_float else float_kv(work.arguments, work.network, memory.is_short)
    draft = _with_caches(work, float_type)
    memory = replace(memory, caches=context * draft.kv_bytes_per_token)
    texts = held_out_texts(work, work.arguments.parity_tokens)
    count = sum(map(len, texts))
    work.progress.stage("parity", 2 * count, "tokens")
    expected = float_logits(work, texts)
    floats = bundle_logits(work.folder, draft, texts)
    work.progress.advance(count)
    over_floats = compare_logits(expected, floats)
    check_exact(work.arguments, over_floats)
    work.parity = parity_figures(work, over_floats)
    if tries and asked is None and (settled := settled_kv(over_floats.kl.value, memory, float_type)):
        work.progress.note(settled)
    elif tries:
        write_floats(work.folder / KV_SCALES, measured_scales(work, draft))
        work.files[KV_SCALES] = describe_file(work.folder / KV_SCALES)
        rounded = bundle_logits(work.folder, _with_caches(work, KvType.INT8), texts)
        lost = compare_logits(floats, rounded)
        kv, reason = choose_kv(over_floats.kl.value, lost.kl, memory, float_type)
        if asked is None:
            work.progress.note(reason)
        if (asked or kv) is KvType.INT8:
            work.parity = _rounded_figures(work, expected, floats, rounded)
        else:
            del work.files[KV_SCALES]
            (work.folder / KV_SCALES).unlink()
            _with_caches(work, float_type)
    elif asked is KvType.FLOAT16 and float_type is KvType.FLOAT32:
        rounded = bundle_logits(work.folder, _with_caches(work, asked), texts)
        work.parity = _rounded_figures(work, expected, floats, rounded)
    work.parity |= baseline_figures(work, texts, expected)


def _rounded_figures(work: Compilation, expected: Float32, floats: Float32, rounded: Float32) -> dict[str, float]:
    """Of logits over rounded caches against the float model, and against those over float ones."""
    figures = parity_figures(work, compare_logits(floats, rounded))
    kept = {f"kv_{name}": value for name, value in figures.items() if name not in ("tokens", "relative_error")}
    return parity_figures(work, compare_logits(expected, rounded)) | kept


def _with_caches(work: Compilation, kv: KvType) -> Manifest:
    """What the bundle is with attention graphs for caches of this type, which are written in the place of others."""
    work.arguments = replace(work.arguments, kv=kv)
    for spec in work.graphs:
        if spec.kind is GraphKind.ATTENTION:
            (work.folder / spec.file).unlink()
    work.graphs = [spec for spec in work.graphs if spec.kind is not GraphKind.ATTENTION]
    graphs = attention_graphs(work.network, kv.value) | masked_attention_graphs(work.network, kv.value)
    for name, graph in graphs.items():
        _write(work, name, GraphKind.ATTENTION, graph)
    return describe(work)


def segment_weights_stage(work: Compilation) -> None:
    """Quantise and write the weights; embedding, norms and biases lie apart from the matrices."""
    folder = work.folder
    with (
        packing(work) as packer,
        WeightFile(folder, SHARED_DATA) as shared,
        WeightFile(folder, LINEAR_DATA) as matrices,
    ):
        work.packed.append(packer.pack(work.parts[0], matrices, shared))
    work.files |= {file.name: file.entry for file in (shared, matrices)}


def linear_graphs_stage(work: Compilation) -> None:
    """Write the linear graphs, and the graph of recurrent layers, which runs between them."""
    count, recurrent = work.network.spec.layers + 1, work.network.spec.recurrent
    modules = lora_modules(work.network) if work.arguments.lora else ()
    work.progress.stage("graphs", count + (recurrent is not None), "graphs")
    for part in range(1, count + 1):
        graph = linear_graph(work.packed[0], work.network, part, modules)
        _write(work, f"linear_{part}_of_{count}", GraphKind.LINEAR, graph, part, count)
    if recurrent is not None:
        _write(work, RECURRENT, GraphKind.RECURRENT, recurrent_graph(recurrent))


def _write(work: Compilation, name: str, kind: GraphKind, graph: GraphBuilder, part: int = 1, parts: int = 1) -> None:
    work.graphs.append(graph.save(work.folder, name, kind, part, parts))
    work.progress.advance(1)
