"""The graphs of pools: the cut of the network into parts, the shapes of each, its inputs in order, its ONNX files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto

from engine.bundle.manifest import GraphKind, GraphSpec
from engine.bundle.model_spec import ModelSpec
from engine.bundle.tensors import EMBEDS
from engine.bundle.variant import StepShape
from engine.bundle.vision import IMAGE_ROWS, deep_features
from engine.compile.arguments import Split
from engine.compile.graphs.embedding import embed
from engine.compile.graphs.graph_builder import LOGIT_ROWS, GraphBuilder, WrittenGraph
from engine.compile.graphs.layers import LayerWriter
from engine.compile.graphs.lowering import Lowering, linear
from engine.compile.quantisation.packed import PackedPart
from engine.models.network import Network

EMBEDDED = "embedded"
DEEP_ROWS = 256  # of images in a step, as in GenieX bundles
HIDDEN = "hidden_states"


@dataclass(frozen=True, slots=True)
class PartPlan:
    """One part; `number` counts from 1. `source` and `result` name what it takes and gives besides mask, rotation and
    caches."""

    number: int
    count: int
    kind: GraphKind
    has_table: bool
    layers: range
    has_head: bool
    source: str
    result: str

    @property
    def data_file(self) -> str:
        """The external data of all its graphs."""
        return f"part_{self.number}_of_{self.count}.data"


def one_part(kind: GraphKind, layers: int) -> PartPlan:
    """The whole network as one part."""
    return PartPlan(1, 1, kind, True, range(layers), True, "input_ids", "logits")


def plan_parts(split: Split, runs: Sequence[range]) -> tuple[PartPlan, ...]:
    """Parts in the order they run; a part's `source` is the `result` of the one before. runs: layers of one part."""
    alone = split is not Split.NONE  # the head
    lut, is_on_host = split is Split.LUT_LMHEAD, split is Split.HOST_LMHEAD
    count = len(runs) + alone + lut
    parts: list[PartPlan] = []
    if lut:
        parts.append(PartPlan(1, count, GraphKind.LUT, True, range(0), False, "input_ids", EMBEDDED))
    for index, layers in enumerate(runs):
        is_last = index == len(runs) - 1
        kind = GraphKind.DEFAULT if len(runs) == 1 and not alone else GraphKind.DECODER
        has_table, has_head = index == 0 and not lut and not is_on_host, is_last and not alone
        source = parts[-1].result if parts else EMBEDS[0] if is_on_host else "input_ids"
        result = "logits" if has_head else HIDDEN if is_last else f"{HIDDEN}_{layers[-1]}"
        parts.append(PartPlan(len(parts) + 1, count, kind, has_table, layers, has_head, source, result))
    if alone:
        parts.append(PartPlan(count, count, GraphKind.LMHEAD, False, range(0), True, parts[-1].result, "logits"))
    return tuple(parts)


WINDOW_SHARE = 2  # several sequences see a window each while their texts share the other layers' columns
WINDOW_STEP = 64
BORDERS = 32  # columns of the blocks in which what a sequence sees begins and ends


def window_past(spec: ModelSpec, shapes: Sequence[StepShape]) -> int:
    """Most past columns of layers with a window beside layers that see everything, 0 = as many as these have. Half of
    theirs, at least what a sequence and the widest step take."""
    if not shapes or spec.sight or not any(spec.layer_windows):
        return 0
    most = max(shape.past for shape in shapes)
    least = max(spec.layer_windows) + max(shape.rows for shape in shapes) + BORDERS
    columns = -(-max(most // WINDOW_SHARE, least) // WINDOW_STEP) * WINDOW_STEP
    return columns if columns < most else 0


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """One graph to write. shape None = free. Without layers its rows alone matter, and its spec has no context.
    window_past: most past columns of layers with a window, 0 = as many as of others."""

    name: str
    part: PartPlan
    shape: StepShape | None
    window_past: int = 0

    def runs_in(self, step: StepShape) -> bool:
        """Whether it is its part's graph in a step of this shape."""
        has_rows = self.shape is not None and self.shape.rows == step.rows
        return self.shape == step or (has_rows and not self.part.layers)


def plan_graphs(part: PartPlan, shapes: tuple[StepShape, ...], windows: int = 0) -> tuple[GraphPlan, ...]:
    """Every shape for a part with layers; one shape for each number of rows otherwise. No shapes = one free graph.
    windows: as `window_past` says."""
    if not shapes:
        return (GraphPlan(f"free_{part.number}_of_{part.count}", part, None),)
    # The widest context names a graph that has none, so that names keep the contract's pattern.
    wanted = shapes if part.layers else tuple({shape.rows: shape for shape in sorted(shapes)}.values())
    return tuple(GraphPlan(f"{shape}_{part.number}_of_{part.count}", part, shape, windows) for shape in wanted)


def save_graph(plan: GraphPlan, written: WrittenGraph, folder: Path) -> GraphSpec:
    """Write `folder/<name>.onnx` and describe it."""
    shape, part, layers = plan.shape, plan.part, plan.part.layers
    return written.save(
        folder,
        plan.name,
        part.kind,
        part.number,
        part.count,
        rows=shape.rows if shape else None,
        context=shape.context if shape and layers else None,
        first_layer=layers[0] if layers else None,
        last_layer=layers[-1] if layers else None,
    )


def build_graph(plan: GraphPlan, packed: PackedPart, network: Network, lowering: Lowering, dtype: str) -> GraphBuilder:
    """The nodes of one graph; inputs: ids or hidden state, mask, cos, sin, then the caches layer by layer."""
    graph, part, spec = GraphBuilder(dtype, plan.shape, window_past=plan.window_past), plan.part, network.spec
    writer = LayerWriter(graph, lowering, network)
    rows = LOGIT_ROWS if part.kind is GraphKind.LMHEAD else "rows"
    graph.add_input(part.source, *(("int32", 1, rows) if part.has_table else (dtype, 1, rows, spec.hidden)))
    for mask, (_, context) in {writer.visible(each): writer.columns(each) for each in part.layers}.items():
        graph.add_input(mask, dtype, 1, 1, "rows", context)
    for rope in dict.fromkeys(filter(None, map(spec.rope_of, part.layers))):
        for table in writer.tables(rope):
            graph.add_input(table, dtype, 1, 1, "rows", rope.rotary_dim // 2)
    x = writer.embedded(embed(graph, part.source, packed.table)) if packed.table else part.source
    deep = [layer for layer in part.layers if layer < network.deepstack]
    if deep:
        graph.add_input(IMAGE_ROWS, "bool", 1, "rows")
    for index, layer in zip(part.layers, packed.layers, strict=True):
        x = writer.layer(x, layer, index)
        if index in deep:
            added = graph.add_input(deep_features(index), dtype, DEEP_ROWS, spec.hidden)
            x = graph.op("Add", [x, _of_images(graph, added)])
    x = writer.normed(x, packed.final_norm)
    if packed.head is not None:
        x = writer.logits(linear(graph, x, packed.head))
    graph.give(x, part.result, dtype, 1, rows, spec.hidden if packed.head is None else spec.vocab)
    return graph


def _of_images(graph: GraphBuilder, deep: str) -> str:
    """deep [T, H] -> [1, N, H]: its first row where the first row of an image stands, and so on; 0 in all others."""
    assert graph.shape is not None and graph.shape.rows <= DEEP_ROWS, "graphs of images have at most so many rows"
    count = graph.shape.rows

    def flags() -> str:
        return graph.once("image_flags", lambda: graph.op("Cast", [IMAGE_ROWS], to=graph.onnx_dtype))

    def ranks() -> str:
        # A product, as the HTP has no running sum: how many rows of images are before each; exact in half precision.
        before = graph.constant(np.triu(np.ones((count, count), graph.dtype), 1))
        return graph.op("Cast", [graph.op("MatMul", [flags(), before])], to=TensorProto.INT32)

    rows = graph.op("Gather", [deep, graph.once("image_ranks", ranks)], axis=0)
    return graph.op("Mul", [rows, graph.once("image_column", lambda: graph.reshape(flags(), 1, "rows", 1))])
