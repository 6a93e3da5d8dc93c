"""What the graphs of all encoders of images are made of, and the one that reads an image in its own proportions.

The latter has patches in slots, and cells of them are merged to rows of the text.

Shapes: P slots for patches, some of them empty; D numbers of a patch, H heads, M = merge ** 2 patches of a cell, W
numbers of a row of the text model. Definitions: transformers `Qwen2_5_VisionTransformerPretrainedModel` and
`Qwen3VLVisionModel`.

`SizedWriter` writes it for images of one size, in the contract of GenieX: floats, rotation and masks come in, there are
no empty slots, and every place is known beforehand.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.bundle import vision
from engine.bundle.images import cell_order
from engine.bundle.tensors import COS, SIN
from engine.compile.graphs.graph_builder import CONTRIB, ROWS, GraphBuilder
from engine.compile.graphs.lowering import FUSED, PLAIN, Tables, turn_halves
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.models.network import Activation
from engine.models.vision_network import NativeNetwork, patches_of, stretched_shares

CELLS = "cells"
EPSILON = 1e-6
HIDDEN_SCORE = -1e4  # its exponential is 0 in float32


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
        size, perms = width // heads, ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        query, key, value = (
            graph.transpose(graph.reshape(each, 1, -1, heads, size), *perm)
            for each, perm in zip(taken, perms, strict=True)
        )
        mixed = graph.attention(graph.op("Mul", [query, graph.real(size**-0.5)]), key, value, mask)
        return graph.reshape(graph.transpose(mixed, 0, 2, 1, 3), 1, -1, width)

    def activated(self, x: str, activation: Activation) -> str:
        """GELU in one of its forms."""
        return self.graph.op("Gelu", [x], approximate="tanh" if activation is Activation.GELU_TANH else "none")

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


@dataclass(frozen=True, slots=True)
class NativeWriter(TowerWriter):
    """Writes the graph of images in their own proportions."""

    network: NativeNetwork

    def write(self, width: int, advance: Callable[[int], None]) -> None:
        """patches, places, padding, span -> image_features [P / M, W], or [P / M, W * (1 + deep layers)]."""
        graph, patch = self.graph, self.native.patch
        graph.add_input(vision.PATCHES, "uint8", ROWS, 3 * patch**2)
        graph.add_input(vision.PLACES, self.dtype, ROWS, 2)
        graph.add_input(vision.PADDING, self.dtype, ROWS, 1)
        graph.add_input(vision.SPAN, self.dtype, 1, 2)  # of learned positions; the others leave it
        rows = self.encoded(width, advance)
        graph.op("Concat", rows, name=vision.FEATURES, axis=-1)
        graph.add_output(vision.FEATURES, self.dtype, CELLS, width * len(rows))

    def encoded(self, width: int, advance: Callable[[int], None]) -> list[str]:
        """Rows of the text [P / M, W], then those that are added behind its first layers."""
        network, root = self.network, self.network.root
        x, turned, merged = self.embedded(), self.rotation(), list[str]()
        for layer in range(network.layers):
            sees_all = layer in network.seeing_all or not self.native.window
            x = self.layer(x, f"{root}blocks.{layer}.", turned, sees_all)
            if layer in network.deep:
                name = f"{root}deepstack_merger_list.{network.deep.index(layer)}."
                merged.append(self.merged(x, name, width, is_normed_whole=True))
            advance(1)
        return [self.merged(x, f"{root}merger.", width), *merged]

    @property
    def native(self) -> vision.NativeSpec:
        """How the image is cut."""
        assert self.network.spec.native is not None
        return self.network.spec.native

    def embedded(self) -> str:
        """Patches [P, 3 * patch ** 2] -> [1, P, D]. All frames of a patch are alike, so their weights are added."""
        graph, network, patch = self.graph, self.network, self.native.patch
        name, each = f"{network.root}patch_embed.proj", (1, 3 * patch**2)
        mean, std = (np.repeat(values, patch**2).tolist() for values in (network.mean, network.std))
        weight = self.checkpoint.tensor(f"{name}.weight", (network.hidden, 3, network.frames, patch, patch))
        flat = weight.sum(axis=2, dtype=np.float64).astype(np.float32).reshape(network.hidden, each[1])
        x = self.placed(self.product(self.normalised(vision.PATCHES, mean, std, each), f"{name}.weight", flat))
        return graph.reshape(x, 1, ROWS, network.hidden)

    def placed(self, x: str) -> str:
        """Products of patches [P, D] with their bias and learned positions, where there are these."""
        graph, network = self.graph, self.network
        if not network.table_side:
            return x
        x = graph.op("Add", [x, self.stored(f"{network.root}patch_embed.proj.bias", (network.hidden,))])
        return graph.op("Add", [x, self.learned_positions()])

    def learned_positions(self) -> str:
        """A square table, stretched over the image: between its places linear by row and column [P, D]. What a place of
        the table counts for is 1 minus its distance, and 0 from distance 1 on."""
        graph, network, side = self.graph, self.network, self.network.table_side
        stretched = graph.op("Div", [graph.op("Mul", [vision.PLACES, graph.real(side - 1)]), vision.SPAN])
        shares: list[str] = []
        for place in graph.split(stretched, 1, 1):
            distance = graph.op("Sub", [place, graph.constant(np.arange(side, dtype=np.float32)[None])])
            shares.append(graph.op("Relu", [graph.op("Sub", [graph.real(1), graph.op("Abs", [distance])])]))
        rows, columns = graph.reshape(shares[0], ROWS, side, 1), graph.reshape(shares[1], ROWS, 1, side)
        share = graph.reshape(graph.op("Mul", [rows, columns]), ROWS, side * side)
        table = self.stored(f"{network.root}pos_embed.weight", (side * side, network.hidden))
        return graph.op("MatMul", [share, table])

    def rotation(self) -> Tables:
        """cos and sin [1, P, D / H / 2]: the first half turns by the row, the second by the column."""
        graph, network = self.graph, self.network
        half = network.hidden // network.heads // 2
        frequencies = (1.0 / network.theta ** (np.arange(0, half, 2) / half)).astype(np.float32)
        apart = graph.reshape(vision.PLACES, ROWS, 2, 1)
        angles = graph.reshape(graph.op("Mul", [apart, graph.constant(frequencies[None, None])]), 1, ROWS, half)
        return graph.op("Cos", [angles]), graph.op("Sin", [angles])

    def layer(self, x: str, name: str, turned: Tables, sees_all: bool) -> str:
        """[1, P, D] -> the same shape: attention, then a feed-forward, each of its norm."""
        graph, network = self.graph, self.network
        hidden, ffn = network.hidden, network.ffn
        mixed = self.attended(self.any_norm(x, f"{name}norm1", hidden), f"{name}attn.", turned, sees_all)
        x = graph.op("Add", [x, mixed])
        normed = self.any_norm(x, f"{name}norm2", hidden)
        if network.is_gated:
            gate, up = (self.linear(normed, f"{name}mlp.{side}_proj", hidden, ffn) for side in ("gate", "up"))
            silu = (PLAIN if self.has_one_size else FUSED).silu
            inner, down = graph.op("Mul", [silu(graph, gate), up]), "down_proj"
        else:
            inner = self.activated(self.linear(normed, f"{name}mlp.linear_fc1", hidden, ffn), network.activation)
            down = "linear_fc2"
        return graph.op("Add", [x, self.linear(inner, f"{name}mlp.{down}", ffn, hidden)])

    def attended(self, x: str, name: str, turned: Tables, sees_all: bool) -> str:
        """[1, P, D] -> the same shape, over all slots or those of each window."""
        hidden = self.network.hidden
        parts = self.graph.split(self.linear(x, f"{name}qkv", hidden, 3 * hidden), hidden, hidden, hidden)
        return self.linear(self.mixed(parts, turned, sees_all), f"{name}proj", hidden, hidden)

    def mixed(self, parts: Sequence[str], turned: Tables, sees_all: bool) -> str:
        """Queries, keys and values [1, P, D] -> the same shape. Heads get one number more, in which the keys of empty
        slots have a score that nobody sees: a mask would have the operator keep all scores at once."""
        graph, hidden, heads, (query, key, value) = self.graph, self.network.hidden, self.network.heads, parts
        size = hidden // heads
        query, key = (graph.op("RotaryEmbedding", [each, *turned], num_heads=heads) for each in (query, key))
        empty = graph.once("empty", self.empty_slots)
        full = graph.once("full", lambda: graph.op("Add", [graph.op("Mul", [empty, graph.real(0)]), graph.real(1)]))
        wide = heads * (size + 1)
        query, key = (
            graph.reshape(graph.op("Concat", [graph.reshape(each, 1, ROWS, heads, size), more], axis=-1), 1, ROWS, wide)
            for each, more in ((query, full), (key, empty))
        )
        if not sees_all:
            length = (self.native.window * self.native.merge) ** 2
            query, key, value = (
                graph.reshape(each, ROWS, length, width)
                for each, width in ((query, wide), (key, wide), (value, hidden))
            )
        scale = 1.0 / math.sqrt(size)
        mixed = graph.op("MultiHeadAttention", [query, key, value], CONTRIB, num_heads=heads, scale=scale)
        return graph.reshape(mixed, 1, ROWS, hidden)

    def empty_slots(self) -> str:
        """What the keys of a slot add to a score [1, P, H, 1], before the scale."""
        graph, network = self.graph, self.network
        hidden_score = HIDDEN_SCORE * math.sqrt(network.hidden // network.heads)
        scores = graph.reshape(graph.op("Mul", [vision.PADDING, graph.real(hidden_score)]), 1, ROWS, 1, 1)
        return graph.op("Expand", [scores, graph.integers(1, 1, network.heads, 1)])

    def merged(self, x: str, name: str, width: int, is_normed_whole: bool = False) -> str:
        """[1, P, D] -> rows [P / M, W]: the patches of a cell side by side, through two matrices. is_normed_whole: the
        norm is over all of a cell, not over each patch."""
        graph, network = self.graph, self.network
        whole = network.hidden * self.native.merge**2
        norm, first, second = ("ln_q", "mlp.0", "mlp.2") if network.is_gated else ("norm", "linear_fc1", "linear_fc2")
        if not is_normed_whole:
            x = self.any_norm(x, name + norm, network.hidden)
        x = graph.reshape(x, -1, whole)
        if is_normed_whole:
            x = self.any_norm(x, name + norm, whole)
        inner = self.activated(self.linear(x, name + first, whole, whole), Activation.GELU)
        return self.linear(inner, name + second, whole, width)

    def any_norm(self, x: str, name: str, width: int) -> str:
        """Over the last axis, in the form of the network."""
        if not self.network.is_gated:
            return self.norm(x, name, width, EPSILON)
        return self.graph.op("RMSNormalization", [x, self.stored(f"{name}.weight", (width,))], axis=-1, epsilon=EPSILON)


@dataclass(frozen=True, slots=True)
class SizedWriter(NativeWriter):
    """Writes it in plain operators."""

    def write(self, width: int, advance: Callable[[int], None]) -> None:
        """pixel_values, cos, sin, masks -> image_features [P / M, W], and deepstack_visual_embeds_k of each layer."""
        graph, network = self.graph, self.network
        pairs = network.hidden // network.heads // 2
        graph.add_input(vision.PIXEL_VALUES, self.dtype, ROWS, 3 * network.frames * self.native.patch**2)
        graph.add_input(COS, self.dtype, ROWS, pairs)
        graph.add_input(SIN, self.dtype, ROWS, pairs)
        if self.native.window:
            graph.add_input(vision.SEEN_IN_WINDOW, self.dtype, 1, ROWS, ROWS)
        graph.add_input(vision.SEEN, self.dtype, 1, ROWS, ROWS)
        names = [vision.FEATURES, *map(vision.deep_features, range(len(network.deep)))]
        for name, rows in zip(names, self.encoded(width, advance), strict=True):
            count = patches_of(network) // self.native.merge**2
            graph.give(self.ordered(rows, width, True), name, self.dtype, count, width)

    def embedded(self) -> str:
        """pixel_values [P, 3 * frames * patch ** 2] -> [1, P, D]."""
        network, patch, name = self.network, self.native.patch, f"{self.network.root}patch_embed.proj.weight"
        weight = self.checkpoint.tensor(name, (network.hidden, 3, network.frames, patch, patch))
        x = self.placed(self.product(vision.PIXEL_VALUES, name, weight.reshape(network.hidden, -1)))
        ordered = self.ordered(x, network.hidden * self.native.merge**2, False)
        return self.graph.reshape(ordered, 1, ROWS, network.hidden)

    def ordered(self, x: str, width: int, is_reverse: bool) -> str:
        """Cells [P / M, width] window after window, or row by row again; Qwen2.5-VL."""
        graph, order = self.graph, cell_order(self.network.spec)
        if not self.native.window:
            return x
        cells, order = graph.reshape(x, -1, width), np.argsort(order) if is_reverse else order
        return graph.op("Gather", [cells, graph.constant(order.astype(np.int32))], axis=0)

    def learned_positions(self) -> str:
        """The table, stretched over an image of this size [P, D]."""
        network, name = self.network, f"{self.network.root}pos_embed.weight"
        table = self.checkpoint.tensor(name, (network.table_side**2, network.hidden))
        stretched = stretched_shares(network) @ table.astype(np.float64)
        return self.graph.stored(self.file.add(name, stretched.astype(np.float32)))

    def rotation(self) -> Tables:
        """cos and sin [1, 1, P, D / H / 2] as they come in."""
        graph, pairs = self.graph, self.network.hidden // self.network.heads // 2
        return graph.reshape(COS, 1, 1, ROWS, pairs), graph.reshape(SIN, 1, 1, ROWS, pairs)

    def mixed(self, parts: Sequence[str], turned: Tables, sees_all: bool) -> str:
        """Queries, keys and values [1, P, D] -> the same shape, under the mask of all or that of windows."""
        query, key, value = parts
        taken = self.turned(query, turned), self.turned(key, turned), value
        mask = vision.SEEN if sees_all else vision.SEEN_IN_WINDOW
        return self.attention(taken, self.network.heads, self.network.hidden, mask)

    def turned(self, x: str, tables: Tables) -> str:
        """[1, P, D] -> the same shape."""
        graph, heads, size = self.graph, self.network.heads, self.network.hidden // self.network.heads
        apart = graph.transpose(graph.reshape(x, 1, ROWS, heads, size), 0, 2, 1, 3)
        joined = graph.transpose(turn_halves(graph, apart, size, size, tables), 0, 2, 1, 3)
        return graph.reshape(joined, 1, ROWS, self.network.hidden)
