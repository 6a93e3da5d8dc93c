"""How graphs of each device write norms, SiLU and rotations, and linear layers by the method of their weights."""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

from engine.bundle.model_spec import RopeSpec
from engine.bundle.tensors import COS, SIN
from engine.compile.graphs.graph_builder import CONTRIB, GraphBuilder
from engine.compile.quantisation.packed import PackedLinear
from engine.models.network import Activation

Tables = tuple[str, str]  # cos and sin
PLAIN_TABLES: Tables = (COS, SIN)
LOCAL_TABLES: Tables = ("swa_position_ids_cos", "swa_position_ids_sin")


class Lowering(Enum):
    """What operators a graph is made of.

    Measured on the CPU provider at hidden 1024, 128 rows: norm 44 us fused and 116 us plain, rotation 83 and 177 us;
    SkipSimplifiedLayerNormalization (172 us) is slower than an addition and the norm (77 us).
    """

    FUSED = "fused"  # those of onnxruntime's CPU provider
    PLAIN = "plain"  # arithmetic alone
    NPU = "npu"

    @property
    def spreads_single_row(self) -> bool:
        """Whether a lone row keeps its query heads apart instead of folding them into rows: the product of one row with
        a matrix needs no copy of the matrix. One row, 8 key heads of 128, 512 columns: 57 us, of folded ones 136 us."""
        return self is Lowering.FUSED

    def norm(self, graph: GraphBuilder, x: str, weight: str, epsilon: float) -> str:
        """RMS over the last axis. On the HTP in half precision, activations of 300: the native norm of a rank-3 tensor
        is right to 0.05 %, the plain one wrong by 26 % because its squares overflow. L2 normalisation has no epsilon:
        0.2 % wrong for activations of 0.02."""
        if self is not Lowering.PLAIN:
            return graph.op("RMSNormalization", [x, weight], axis=-1, epsilon=epsilon)
        mean = graph.op("ReduceMean", [graph.op("Mul", [x, x]), graph.integers(-1)], keepdims=1)
        root = graph.op("Sqrt", [graph.op("Add", [mean, graph.real(epsilon)])])
        return graph.op("Mul", [graph.op("Div", [x, root]), weight])

    def silu(self, graph: GraphBuilder, x: str) -> str:
        """x * sigmoid(x)."""
        if self is Lowering.FUSED:
            return graph.op("QuickGelu", [x], domain=CONTRIB, alpha=1.0)
        return graph.op("Mul", [x, graph.op("Sigmoid", [x])])

    def rotate(self, graph: GraphBuilder, x: str, head_dim: int, rope: RopeSpec, inputs: Tables) -> str:
        """x [1, heads, rows, head_dim], by two of the graph's inputs [1, 1, rows, rotary_dim / 2]."""
        if self is Lowering.FUSED:
            return rotate_by(graph, x, _table_rows(graph, rope.rotary_dim, inputs), head_dim, rope)
        return turn_halves(graph, x, head_dim, rope.rotary_dim, inputs)


FUSED, PLAIN, NPU = Lowering.FUSED, Lowering.PLAIN, Lowering.NPU


def rotate_by(graph: GraphBuilder, x: str, tables: Tables, head_dim: int, rope: RopeSpec) -> str:
    """x [1, heads, rows, head_dim] -> the same shape, by cos and sin [1, rows, rotary_dim / 2]."""
    return graph.op("RotaryEmbedding", [x, *tables], **_rotation(head_dim, rope))


def rotate_rows(graph: GraphBuilder, x: str, heads: int, head_dim: int, rope: RopeSpec, name: str = "") -> str:
    """x [1, rows, heads * head_dim] -> the same shape under that name: the fused rotation without transposes."""
    tables = _table_rows(graph, rope.rotary_dim)
    return graph.op("RotaryEmbedding", [x, *tables], name=name, num_heads=heads, **_rotation(head_dim, rope))


def _rotation(head_dim: int, rope: RopeSpec) -> dict[str, Any]:
    """Attributes; 0, the default of the first, means the whole head."""
    rotated = 0 if rope.rotary_dim == head_dim else rope.rotary_dim
    return {"rotary_embedding_dim": rotated} | ({"interleaved": 1} if rope.is_interleaved else {})


def _table_rows(graph: GraphBuilder, rotary_dim: int, inputs: Tables = PLAIN_TABLES) -> Tables:
    """cos and sin as the operator wants them: [1, rows, rotary_dim / 2]."""
    cos, sin = (graph.once(f"{x} rows", partial(graph.reshape, x, 1, "rows", rotary_dim // 2)) for x in inputs)
    return cos, sin


def turn_halves(graph: GraphBuilder, x: str, head_dim: int, rotary_dim: int, tables: Tables) -> str:
    """Each number of the first half of the rotary part turns with its partner in the second half."""
    half, rest, (cos, sin) = rotary_dim // 2, head_dim - rotary_dim, tables
    first, second, *kept = graph.split(x, half, half, *([rest] if rest else []))
    low = graph.op("Sub", [graph.op("Mul", [first, cos]), graph.op("Mul", [second, sin])])
    high = graph.op("Add", [graph.op("Mul", [second, cos]), graph.op("Mul", [first, sin])])
    return graph.op("Concat", [low, high, *kept], axis=-1)


def activated(graph: GraphBuilder, x: str, activation: Activation, lowering: Lowering) -> str:
    """What a gate multiplies with, or what the down projection takes."""
    match activation:
        case Activation.GELU | Activation.GATED_GELU:
            return graph.op("Gelu", [x])
        case Activation.GELU_TANH | Activation.GATED_GELU_TANH:
            return graph.op("Gelu", [x], approximate="tanh")
        case Activation.GATED_SILU:
            return lowering.silu(graph, x)
        case Activation.RELU:
            return graph.op("Relu", [x])
        case Activation.SQUARED_RELU:
            positive = graph.op("Relu", [x])
            return graph.op("Mul", [positive, positive])


def linear(graph: GraphBuilder, x: str, layer: PackedLinear) -> str:
    """x [1, rows, inputs] -> [1, rows, outputs]."""
    product = layer.method.multiply(graph, x, layer.matrix)
    return product if layer.bias is None else graph.op("Add", [product, graph.parameter(layer.bias)])


def linear_halves(graph: GraphBuilder, x: str, layer: PackedLinear) -> list[str]:
    """x [1, rows, inputs] -> twice [1, rows, outputs / 2]: the products of the two matrices that are stacked in one.
    Two products, where the method allows, because a Split of one copies all of it on a single core."""
    if not layer.method.has_rows:
        return graph.split(linear(graph, x, layer), *[layer.matrix.outputs // 2] * 2)
    return [
        linear(graph, x, replace(layer, matrix=matrix, bias=layer.bias and layer.bias.part(index, 2)))
        for index, matrix in enumerate(layer.matrix.halves())
    ]


def linear_pieces(graph: GraphBuilder, x: str, layer: PackedLinear, widths: Sequence[int]) -> list[str]:
    """x [1, rows, inputs] -> [1, rows, width] of each: the products of the matrices that are stacked in one. Each has
    its bias added alone. A sum of all would have one range of 16-bit integers, and the biases of keys can be a thousand
    times as large as values (Qwen2)."""
    pieces = graph.split(layer.method.multiply(graph, x, layer.matrix), *widths)
    if layer.bias is None:
        return pieces
    biases = layer.bias.pieces(widths)
    return [graph.op("Add", [piece, graph.parameter(bias)]) for piece, bias in zip(pieces, biases, strict=True)]
