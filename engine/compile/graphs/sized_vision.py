"""The graph that reads images of one size in patches, in the contract of GenieX: floats, rotation and masks come in.

Shapes and definitions: `native_vision`. There are no empty slots, and every place is known beforehand.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.bundle.images import cell_order
from engine.bundle.tensors import COS, SIN
from engine.bundle.vision import FEATURES, PIXEL_VALUES, SEEN, SEEN_IN_WINDOW, deep_features
from engine.compile.graphs.graph_builder import ROWS
from engine.compile.graphs.native_vision import NativeWriter
from engine.models.sized_vision import patches_of, stretched_shares


@dataclass(frozen=True, slots=True)
class SizedWriter(NativeWriter):
    """Writes it in plain operators."""

    def write(self, width: int, advance: Callable[[int], None]) -> None:
        """pixel_values, cos, sin, masks -> image_features [P / M, W], and deepstack_visual_embeds_k of each layer."""
        graph, network = self.graph, self.network
        pairs = network.hidden // network.heads // 2
        graph.add_input(PIXEL_VALUES, self.dtype, ROWS, 3 * network.frames * self.native.patch**2)
        graph.add_input(COS, self.dtype, ROWS, pairs)
        graph.add_input(SIN, self.dtype, ROWS, pairs)
        if self.native.window:
            graph.add_input(SEEN_IN_WINDOW, self.dtype, 1, ROWS, ROWS)
        graph.add_input(SEEN, self.dtype, 1, ROWS, ROWS)
        names = [FEATURES, *map(deep_features, range(len(network.deep)))]
        for name, rows in zip(names, self.encoded(width, advance), strict=True):
            graph.op("Identity", [self.ordered(rows, width, True)], name=name)
            graph.add_output(name, self.dtype, patches_of(network) // self.native.merge**2, width)

    def embedded(self) -> str:
        """pixel_values [P, 3 * frames * patch ** 2] -> [1, P, D]."""
        graph, network, patch = self.graph, self.network, self.native.patch
        name = f"{network.root}patch_embed.proj"
        weight = self.checkpoint.tensor(f"{name}.weight", (network.hidden, 3, network.frames, patch, patch))
        x = self.product(PIXEL_VALUES, f"{name}.weight", weight.reshape(network.hidden, -1))
        if network.table_side:
            x = graph.op("Add", [x, self.stored(f"{name}.bias", (network.hidden,))])
            x = graph.op("Add", [x, self.learned_positions()])
        return graph.reshape(self.ordered(x, network.hidden * self.native.merge**2, False), 1, ROWS, network.hidden)

    def ordered(self, x: str, width: int, is_reverse: bool) -> str:
        """Cells [P / M, width] window after window, or row by row again; Qwen2.5-VL."""
        graph, order = self.graph, cell_order(self.network.spec)
        if not self.native.window:
            return x
        order = np.argsort(order) if is_reverse else order
        cells = graph.reshape(x, -1, width)
        return graph.op("Gather", [cells, graph.constant(order.astype(np.int32))], axis=0)

    def learned_positions(self) -> str:
        """The table, stretched over an image of this size [P, D]."""
        network, name = self.network, f"{self.network.root}pos_embed.weight"
        table = self.checkpoint.tensor(name, (network.table_side**2, network.hidden))
        stretched = stretched_shares(network) @ table.astype(np.float64)
        return self.graph.stored(self.file.add(name, stretched.astype(np.float32)))

    def rotation(self) -> tuple[str, str]:
        """cos and sin [1, 1, P, D / H / 2] as they come in."""
        graph, pairs = self.graph, self.network.hidden // self.network.heads // 2
        return graph.reshape(COS, 1, 1, ROWS, pairs), graph.reshape(SIN, 1, 1, ROWS, pairs)

    def attended(self, x: str, name: str, turned: tuple[str, str], sees_all: bool) -> str:
        """[1, P, D] -> the same shape, under the mask of all or that of windows."""
        graph, network = self.graph, self.network
        hidden, heads = network.hidden, network.heads
        stacked = self.linear(x, f"{name}qkv", hidden, 3 * hidden)
        query, key, value = graph.op_many("Split", [stacked, graph.integers(hidden, hidden, hidden)], 3, axis=-1)
        taken = (self.turned(query, turned), self.turned(key, turned), value)
        return self.linear(
            self.attention(taken, heads, hidden, SEEN if sees_all else SEEN_IN_WINDOW), f"{name}proj", hidden, hidden
        )

    def turned(self, x: str, tables: tuple[str, str]) -> str:
        """[1, P, D] -> the same shape: each number of the first half of a head turns with its partner in the second."""
        graph, network = self.graph, self.network
        heads, half = network.heads, network.hidden // network.heads // 2
        cos, sin = tables
        apart = graph.op("Transpose", [graph.reshape(x, 1, ROWS, heads, 2 * half)], perm=[0, 2, 1, 3])
        first, second = graph.op_many("Split", [apart, graph.integers(half, half)], 2, axis=-1)
        low = graph.op("Sub", [graph.op("Mul", [first, cos]), graph.op("Mul", [second, sin])])
        high = graph.op("Add", [graph.op("Mul", [second, cos]), graph.op("Mul", [first, sin])])
        joined = graph.op("Transpose", [graph.op("Concat", [low, high], axis=-1)], perm=[0, 2, 1, 3])
        return graph.reshape(joined, 1, ROWS, network.hidden)

    def silu(self, x: str) -> str:
        return self.graph.op("Mul", [x, self.graph.op("Sigmoid", [x])])
