"""Layers that carry a state of one size from token to token instead of keys and values of every token.

Gated DeltaNet (Yang et al., arXiv 2412.06464): a short convolution over the inputs, then a matrix for each head that
decays and is corrected by every token. Legend: R = recurrent layers, C = channels, W = kernel, H = value heads,
K = key size, V = value size.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle.bounds import Count, Heads, HeadSize

FLOAT_BYTES = 4
MOST_KERNEL = 64
MOST_STATE_BYTES = 2 << 30  # 256 MiB serves the largest models there are


class RecurrentSpec(msgspec.Struct, frozen=True):
    """Geometry of the recurrent layers. layers: which of the model they are, ascending. kernel: of the convolution."""

    layers: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=1024)]
    key_heads: Heads
    value_heads: Heads
    key_dim: HeadSize
    value_dim: HeadSize
    kernel: Annotated[int, Meta(ge=2, le=MOST_KERNEL)]

    @property
    def key_width(self) -> int:
        """Numbers in the queries of a token, and in its keys."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Numbers in the values of a token."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Numbers of a token that go through the convolution: queries, keys, values."""
        return 2 * self.key_width + self.value_width

    @property
    def memory_shape(self) -> tuple[int, int, int]:
        """[H, K, V] of one layer."""
        return self.value_heads, self.key_dim, self.value_dim

    @property
    def tail_shape(self) -> tuple[int, int]:
        """[C, W - 1] of one layer: what the convolution still needs of the last tokens."""
        return self.channels, self.kernel - 1

    @property
    def memory_bytes(self) -> int:
        """float32 bytes of the matrices of one sequence, over all layers."""
        return len(self.layers) * self.value_width * self.key_dim * FLOAT_BYTES

    @property
    def tail_bytes(self) -> int:
        """float32 bytes of the convolutions' last inputs of one sequence, over all layers."""
        return len(self.layers) * self.channels * (self.kernel - 1) * FLOAT_BYTES

    @property
    def state_bytes(self) -> int:
        """Both: the state of one sequence, however long it is."""
        return self.memory_bytes + self.tail_bytes

    def fault(self, layers: int) -> str:
        """What is wrong with it in a model of so many layers, "" when nothing is."""
        if list(self.layers) != sorted(set(self.layers)) or self.layers[-1] >= layers:
            return f"recurrent layers {list(self.layers)[:8]} are not ascending numbers below {layers}"
        if layers - 1 in self.layers:
            return "the last layer is recurrent; it must have attention"
        if self.value_heads % self.key_heads:
            return f"{self.value_heads} value heads are no multiple of {self.key_heads} key heads"
        if self.state_bytes > MOST_STATE_BYTES:
            return f"recurrent layers take {self.state_bytes} bytes a sequence, {MOST_STATE_BYTES} is the most"
        return ""
