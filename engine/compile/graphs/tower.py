"""What the graphs of all encoders of images are made of."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.compile.graphs.graph_builder import CONTRIB, GraphBuilder
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.models.network import Activation

LIGHTEST = 255.0  # a colour as a byte


@dataclass(frozen=True, slots=True)
class TowerWriter:
    """Writes nodes of one graph, and their weights in float32."""

    graph: GraphBuilder
    checkpoint: Checkpoint
    file: WeightFile

    def normalised(self, pixels: str, mean: Sequence[float], std: Sequence[float], shape: tuple[int, ...]) -> str:
        """Bytes to (colour - mean) / std. mean, std: of channels, or of the numbers of a patch; shape: theirs."""
        graph = self.graph
        deviations, means = np.array(std, np.float64).reshape(shape), np.array(mean, np.float64).reshape(shape)
        scale, shift = 1.0 / (LIGHTEST * deviations), -means / deviations
        floats = graph.op("Cast", [pixels], to=graph.onnx_dtype)
        scaled = graph.op("Mul", [floats, graph.constant(scale.astype(np.float32))])
        return graph.op("Add", [scaled, graph.constant(shift.astype(np.float32))])

    @property
    def dtype(self) -> str:
        """Of what flows through the graph."""
        return str(self.graph.dtype)

    @property
    def has_one_size(self) -> bool:
        """Whether it is for an NPU, as GenieX has such graphs: of plain operators, floats for pixels."""
        return self.graph.shape is not None

    def attention(self, taken: Sequence[str], heads: int, width: int, mask: str = "") -> str:
        """Queries, keys and values [1, P, width] -> the same shape. mask: added to scores [1, P, P], of one size."""
        graph = self.graph
        if not self.has_one_size:
            return graph.op("MultiHeadAttention", taken, CONTRIB, num_heads=heads)
        size = width // heads
        query, key, value = (
            graph.op("Transpose", [graph.reshape(each, 1, -1, heads, size)], perm=perm)
            for each, perm in zip(taken, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
        )
        scores = graph.op("MatMul", [graph.op("Mul", [query, graph.real(size**-0.5)]), key])
        weights = graph.op("Softmax", [graph.op("Add", [scores, mask]) if mask else scores], axis=-1)
        mixed = graph.op("Transpose", [graph.op("MatMul", [weights, value])], perm=[0, 2, 1, 3])
        return graph.reshape(mixed, 1, -1, width)

    def activated(self, x: str, activation: Activation) -> str:
        """GELU in one of its forms."""
        approximate = "tanh" if activation is Activation.GELU_TANH else "none"
        return self.graph.op("Gelu", [x], approximate=approximate)

    def norm(self, x: str, name: str, width: int, epsilon: float) -> str:
        """Over the last axis, with mean and bias."""
        taken = [x, self.stored(f"{name}.weight", (width,)), self.stored(f"{name}.bias", (width,))]
        return self.graph.op("LayerNormalization", taken, axis=-1, epsilon=epsilon)

    def linear(self, x: str, name: str, inputs: int, outputs: int, has_bias: bool = True) -> str:
        """[1, rows, inputs] -> [1, rows, outputs]."""
        product = self.product(x, f"{name}.weight", self.checkpoint.tensor(f"{name}.weight", (outputs, inputs)))
        return self.graph.op("Add", [product, self.stored(f"{name}.bias", (outputs,))]) if has_bias else product

    def product(self, x: str, name: str, matrix: Float32) -> str:
        """x [..., inputs] times a matrix [outputs, inputs]."""
        return self.graph.op("MatMul", [x, self.graph.stored(self.file.add(name, matrix.T))])

    def stored(self, name: str, shape: tuple[int, ...]) -> str:
        return self.graph.stored(self.file.add(name, self.checkpoint.tensor(name, shape)))
