"""Recurrent layers of a segmented bundle: what linear graphs compute of them, and the graph that has no weights.

Shapes: N rows of one sequence, C channels, W kernel, G key heads, H value heads, K key size, V value size.
Definition: transformers `Qwen3_5GatedDeltaNet`.
"""

import math

import numpy as np

from engine.bundle.conv_weights import CONV_WEIGHTS, conv_shape, write_conv_weights
from engine.bundle.manifest import describe_file
from engine.bundle.recurrent import RecurrentSpec
from engine.bundle.recurrent_forms import (
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
from engine.compile.compilation import Compilation
from engine.compile.graph_builder import CONTRIB, ROWS, GraphBuilder
from engine.compile.layers import LayerWriter
from engine.compile.linear import linear
from engine.compile.packed import PackedRecurrence

DTYPE = "float32"
NORM_EPSILON = 1e-6  # of the length of queries and keys


def start_recurrence(layers: LayerWriter, x: str, stacked: str, packed: PackedRecurrence) -> None:
    """x [1, N, hidden], normed, and its stacked product [1, N, C + H * V] -> what the recurrence takes, and its gate.

    decay is a logarithm: -exp(A_log) * softplus(a + dt_bias). beta is a sigmoid.
    """
    graph, spec = layers.graph, _spec(layers)
    widths = graph.integers(spec.channels, spec.value_width)
    graph.node("Split", [stacked, widths], [CONV_IN, GATE_OUT], axis=-1)
    heads = graph.integers(spec.value_heads, spec.value_heads)
    beta, step = graph.op_many("Split", [linear(graph, x, packed.steps), heads], 2, axis=-1)
    graph.op("Sigmoid", [beta], name=BETA)
    shifted = graph.op("Add", [step, graph.parameter(packed.dt_bias)])
    graph.op("Mul", [graph.op("Softplus", [shifted]), graph.parameter(packed.rate)], name=DECAY)
    widths_of = {CONV_IN: spec.channels, DECAY: spec.value_heads, BETA: spec.value_heads, GATE_OUT: spec.value_width}
    for name, width in widths_of.items():
        graph.add_output(name, DTYPE, 1, ROWS, width)


def recurrent_output(layers: LayerWriter, rows: str, packed: PackedRecurrence) -> str:
    """Declares what the recurrence gave and its gate [1, N, H * V]; each head normed, times silu(gate)."""
    graph, spec = layers.graph, _spec(layers)
    for name in (OUT, GATE_IN):
        graph.add_input(name, DTYPE, 1, rows, spec.value_width)
    apart = graph.reshape(OUT, 1, f"{rows}*{spec.value_heads}", spec.value_dim)
    normed = graph.reshape(layers.norm(apart, graph.parameter(packed.norm)), 1, rows, spec.value_width)
    return graph.op("Mul", [normed, layers.lowering.silu(graph, GATE_IN)])


def recurrent_graph(spec: RecurrentSpec) -> GraphBuilder:
    """Rows of one sequence through the convolution and the gated delta rule, from one state to the next.

    state and conv_state are not changed: the new ones are outputs, with memory of their own.
    """
    graph = GraphBuilder(DTYPE, None)
    inputs, outputs = recurrent_forms(spec)
    for name, (dtype, dims) in inputs.items():
        graph.add_input(name, dtype, *dims)
    turned = graph.op("Transpose", [CONV_IN], perm=[0, 2, 1])
    convolved = graph.node(
        "CausalConvWithState",
        [turned, CONV_WEIGHT, "", TAIL],
        ["convolved", TAIL_OUT],
        CONTRIB,
        activation="silu",
    )[0]
    rows = graph.op("Transpose", [convolved], perm=[0, 2, 1])
    widths = graph.integers(spec.key_width, spec.key_width, spec.value_width)
    query, key, value = graph.op_many("Split", [rows, widths], 3, axis=-1)
    # A row of unit length; queries also carry the scale 1 / sqrt(K).
    unit = 1.0 / math.sqrt(spec.key_dim)
    query, key = _of_length(graph, spec, query, unit * unit), _of_length(graph, spec, key, unit)
    graph.node(
        "LinearAttention",
        [query, key, value, MEMORY, DECAY, BETA],
        [OUT, MEMORY_OUT],
        CONTRIB,
        q_num_heads=spec.value_heads,
        kv_num_heads=spec.value_heads,
        update_rule="gated_delta",
        scale=1.0,
    )
    for name, (dtype, dims) in outputs.items():
        graph.add_output(name, dtype, *dims)
    return graph


def _of_length(graph: GraphBuilder, spec: RecurrentSpec, x: str, scale: float) -> str:
    """x [1, N, G * K] -> [1, N, H * K]: every head x / |x| * sqrt(K) * scale, repeated for the values it serves.

    The norm over K numbers takes their mean, so its epsilon is a K-th of that of their sum.
    """
    apart = graph.reshape(x, 1, f"{ROWS}*{spec.key_heads}", spec.key_dim)
    weight = graph.constant(np.full(spec.key_dim, scale, np.float32))
    normed = graph.op("RMSNormalization", [apart, weight], axis=-1, epsilon=NORM_EPSILON / spec.key_dim)
    repeats = spec.value_heads // spec.key_heads
    if repeats > 1:
        single = graph.reshape(normed, 1, f"{ROWS}*{spec.key_heads}", 1, spec.key_dim)
        normed = graph.op("Expand", [single, graph.integers(1, 1, repeats, 1)])
    return graph.reshape(normed, 1, ROWS, spec.value_heads * spec.key_dim)


def conv_weights_stage(work: Compilation) -> None:
    """Write the convolutions of all recurrent layers, if there are any."""
    spec, names = work.network.spec.recurrent, work.network.details.recurrent_names
    if spec is None:
        return
    modules = [names.conv.format(layer=layer) for layer in spec.layers]
    shape = (spec.channels, 1, spec.kernel)
    weights = [work.checkpoint.tensor(f"{module}.weight", shape) for module in modules]
    write_conv_weights(work.folder, np.stack(weights).reshape(conv_shape(spec)))
    work.files[CONV_WEIGHTS] = describe_file(work.folder / CONV_WEIGHTS)


def _spec(layers: LayerWriter) -> RecurrentSpec:
    spec = layers.network.spec.recurrent
    assert spec is not None
    return spec
