"""Recurrent layers: what their linear graphs give and take, and the graph that takes rows of one sequence along.

Shapes: N rows of one sequence, C channels, W kernel, G key heads, H value heads, K key size, V value size.
Definitions: transformers `Qwen3_5GatedDeltaNet`, `Lfm2ShortConv`, `Mamba2Mixer`.
"""

import math

import numpy as np

from engine.bundle.manifest import describe_file
from engine.bundle.segments import (
    BETA,
    CONV_IN,
    CONV_WEIGHT,
    DECAY,
    GATE_IN,
    GATE_OUT,
    MEMORY,
    MEMORY_OUT,
    OUT,
    TAIL,
    TAIL_OUT,
    recurrent_forms,
)
from engine.bundle.specs import RecurrentKind, RecurrentSpec
from engine.bundle.weight_files import CONV_WEIGHTS, write_floats
from engine.compile.compilation import Compilation
from engine.compile.graphs.graph_builder import CONTRIB, ROWS, GraphBuilder
from engine.compile.graphs.layers import LayerWriter
from engine.compile.graphs.lowering import linear
from engine.compile.quantisation.packed import PackedDelta, PackedRecurrence
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.models.network import RecurrentNames

DTYPE = "float32"
NORM_EPSILON = 1e-6  # of the length of queries and keys


def start_recurrence(layers: LayerWriter, x: str, stacked: str, packed: PackedRecurrence) -> None:
    """x [1, N, hidden], normed, and its stacked product [1, N, C + H * V] -> what the recurrence takes, and its gate.
    decay is a logarithm: -exp(A_log) * softplus(a + dt_bias). beta is a sigmoid, or of Mamba2 that softplus."""
    graph, spec = layers.graph, _spec(layers)
    if packed.delta is None:
        _start_convolution(graph, spec, stacked)
        return
    if packed.delta.steps is None:
        widths = graph.integers(spec.value_width, spec.channels, spec.value_heads)
        step = graph.node("Split", [stacked, widths], [GATE_OUT, CONV_IN, "step"], axis=-1)[2]
        _add_decay(graph, step, packed.delta, BETA)
    else:
        widths = graph.integers(spec.channels, spec.value_width)
        graph.node("Split", [stacked, widths], [CONV_IN, GATE_OUT], axis=-1)
        heads = graph.integers(spec.value_heads, spec.value_heads)
        beta, step = graph.op_many("Split", [linear(graph, x, packed.delta.steps), heads], 2, axis=-1)
        graph.op("Sigmoid", [beta], name=BETA)
        _add_decay(graph, step, packed.delta)
    widths_of = {CONV_IN: spec.channels, DECAY: spec.value_heads, BETA: spec.value_heads, GATE_OUT: spec.value_width}
    for name, width in widths_of.items():
        graph.add_output(name, DTYPE, 1, ROWS, width)


def _add_decay(graph: GraphBuilder, step: str, packed: PackedDelta, name: str = "") -> None:
    """step [1, N, H]. name: of its softplus."""
    grown = graph.op("Softplus", [graph.op("Add", [step, graph.parameter(packed.dt_bias)])], name=name)
    graph.op("Mul", [grown, graph.parameter(packed.rate)], name=DECAY)


def _start_convolution(graph: GraphBuilder, spec: RecurrentSpec, stacked: str) -> None:
    """Gate, gate of the outputs and values side by side [1, N, 3 * C]: the first times the values is convolved."""
    widths = graph.integers(*[spec.channels] * 3)
    gate, _, values = graph.node("Split", [stacked, widths], ["first_gate", GATE_OUT, "ungated"], axis=-1)
    graph.op("Mul", [gate, values], name=CONV_IN)
    for name in (CONV_IN, GATE_OUT):
        graph.add_output(name, DTYPE, 1, ROWS, spec.channels)


def recurrent_output(layers: LayerWriter, packed: PackedRecurrence) -> str:
    """Declares what the recurrence gave and its gate [1, N, H * V]; each head normed, times silu(gate), or of Mamba2
    times silu(gate) and then, if there is a norm, normed with the heads of its key head."""
    graph, spec, rows = layers.graph, _spec(layers), layers.rows
    for name in (OUT, GATE_IN):
        graph.add_input(name, DTYPE, 1, rows, spec.value_width)
    if packed.delta is None:
        return graph.op("Mul", [OUT, GATE_IN])
    gate = layers.lowering.silu(graph, GATE_IN)
    if packed.delta.norm is None:
        return graph.op("Mul", [OUT, gate])
    weight = graph.parameter(packed.delta.norm)
    if spec.kind is RecurrentKind.MAMBA2:
        together = spec.value_width // spec.key_heads
        apart = graph.reshape(graph.op("Mul", [OUT, gate]), 1, f"{rows}*{spec.key_heads}", together)
        normed = layers.norm(apart, graph.constant(np.ones(together, np.float32)))
        return graph.op("Mul", [graph.reshape(normed, 1, rows, spec.value_width), weight])
    apart = graph.reshape(OUT, 1, f"{rows}*{spec.value_heads}", spec.value_dim)
    return graph.op("Mul", [graph.reshape(layers.norm(apart, weight), 1, rows, spec.value_width), gate])


def recurrent_graph(spec: RecurrentSpec) -> GraphBuilder:
    """Rows of one sequence through the convolution and, where there are matrices, from those of one state to the next.
    state and conv_state are not changed: the new ones are outputs, with memory of their own."""
    graph = GraphBuilder(DTYPE, None)
    graph.declare(*recurrent_forms(spec))
    weight, bias, skip = CONV_WEIGHT, "", ""
    if spec.kind is RecurrentKind.MAMBA2:
        weight, bias, skip = graph.split(CONV_WEIGHT, spec.kernel, 1, 1)
        bias = graph.reshape(bias, spec.channels)
    turned = graph.transpose(CONV_IN, 0, 2, 1)
    form = {"activation": "silu"} if spec.has_memory else {}
    graph.node("CausalConvWithState", [turned, weight, bias, TAIL], ["convolved", TAIL_OUT], CONTRIB, **form)
    rows = graph.transpose("convolved", 0, 2, 1, name="" if spec.has_memory else OUT)
    if spec.kind is RecurrentKind.MAMBA2:
        _add_state_space(graph, spec, rows, skip)
    elif spec.has_memory:
        _add_delta_rule(graph, spec, rows)
    return graph


def _add_delta_rule(graph: GraphBuilder, spec: RecurrentSpec, rows: str) -> None:
    """rows [1, N, C]: queries, keys and values."""
    query, key, value = graph.split(rows, spec.key_width, spec.key_width, spec.value_width)
    # A row of unit length; queries also carry the scale 1 / sqrt(K).
    unit = 1.0 / math.sqrt(spec.key_dim)
    query, key = _of_length(graph, spec, query, unit * unit), _of_length(graph, spec, key, unit)
    _advance(graph, spec, [query, key, value, MEMORY, DECAY, BETA], "gated_delta", OUT)


def _add_state_space(graph: GraphBuilder, spec: RecurrentSpec, rows: str, skip: str) -> None:
    """rows [1, N, C]: values, keys and queries. skip [C, 1, 1]: how much of a value is added to what its row gives."""
    value, key, query = graph.split(rows, spec.value_width, spec.key_width, spec.key_width)
    query, key = (_repeated(graph, spec, part) for part in (query, key))
    apart = graph.reshape(value, 1, f"{ROWS}*{spec.value_heads}", spec.value_dim)
    stepped = graph.op("Mul", [apart, graph.reshape(BETA, 1, f"{ROWS}*{spec.value_heads}", 1)])
    scaled = graph.reshape(stepped, 1, ROWS, spec.value_width)
    given = _advance(graph, spec, [query, key, scaled, MEMORY, DECAY], "gated", "given")
    kept = graph.op("Mul", [value, graph.reshape(graph.slice(skip, 0, spec.value_width, 0), spec.value_width)])
    graph.op("Add", [given, kept], name=OUT)


def _advance(graph: GraphBuilder, spec: RecurrentSpec, inputs: list[str], rule: str, name: str) -> str:
    """queries, keys [1, N, H * K], values [1, N, H * V], state and steps -> rows of that name, and the next state."""
    heads = {"q_num_heads": spec.value_heads, "kv_num_heads": spec.value_heads}
    return graph.node("LinearAttention", inputs, [name, MEMORY_OUT], CONTRIB, update_rule=rule, scale=1.0, **heads)[0]


def _of_length(graph: GraphBuilder, spec: RecurrentSpec, x: str, scale: float) -> str:
    """x [1, N, G * K] -> [1, N, H * K]: every head x / |x| * sqrt(K) * scale, repeated for the values it serves. The
    norm over K numbers takes their mean, so its epsilon is a K-th of that of their sum."""
    apart = graph.reshape(x, 1, f"{ROWS}*{spec.key_heads}", spec.key_dim)
    weight = graph.constant(np.full(spec.key_dim, scale, np.float32))
    normed = graph.op("RMSNormalization", [apart, weight], axis=-1, epsilon=NORM_EPSILON / spec.key_dim)
    return _repeated(graph, spec, normed)


def _repeated(graph: GraphBuilder, spec: RecurrentSpec, x: str) -> str:
    """The heads of keys [.., K] -> [1, N, H * K], each once for every value head it serves."""
    repeats = spec.value_heads // spec.key_heads
    if repeats > 1:
        single = graph.reshape(x, 1, f"{ROWS}*{spec.key_heads}", 1, spec.key_dim)
        x = graph.op("Expand", [single, graph.integers(1, 1, repeats, 1)])
    return graph.reshape(x, 1, ROWS, spec.value_heads * spec.key_dim)


def conv_weights_stage(work: Compilation) -> None:
    """Write the convolutions of all recurrent layers, if there are any."""
    spec, names = work.network.spec.recurrent, work.network.details.recurrent_names
    if spec is None:
        return
    weights = (_conv_weight(work.checkpoint, spec, names, layer) for layer in spec.layers)
    write_floats(work.folder / CONV_WEIGHTS, *weights)
    work.files[CONV_WEIGHTS] = describe_file(work.folder / CONV_WEIGHTS)


def _conv_weight(checkpoint: Checkpoint, spec: RecurrentSpec, names: RecurrentNames, layer: int) -> Float32:
    """[C, W], and of Mamba2 two columns more, as `RecurrentSpec.columns` says."""
    module = names.conv.format(layer=layer)
    weight = checkpoint.tensor(f"{module}.weight", (spec.channels, 1, spec.kernel))[:, 0]
    if spec.kind is not RecurrentKind.MAMBA2:
        return weight
    more = np.zeros((spec.channels, 2), np.float32)
    if f"{module}.bias" in checkpoint:
        more[:, 0] = checkpoint.tensor(f"{module}.bias", (spec.channels,))
    skip = checkpoint.tensor(names.skip.format(layer=layer), (spec.value_heads,))
    more[: spec.value_width, 1] = np.repeat(skip, spec.value_dim)
    return np.concatenate([weight, more], axis=1)


def _spec(layers: LayerWriter) -> RecurrentSpec:
    spec = layers.network.spec.recurrent
    assert spec is not None
    return spec
