"""export.json: what an exported block-diffusion graph takes and gives. Written by the export, read by the host."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle.specs import Heads, HeadSize, Layers, Name, Rows, TokenId, Tokens, Vocabulary

EXPORT_FILE = "export.json"
EXPORT_VERSION = 1
INPUTS = ("input_ids", "positions", "kv_cache", "attention_mask", "insert_matrix", "keep_mask")
OUTPUTS = ("logits", "updated_kv_cache")


class BlockExport(msgspec.Struct, frozen=True):
    """Shapes of one graph: b sequences, blocks of B tokens, M cache columns, L layers.

    dtype: of masks, cache and logits. mask_layers: first dimension of the masks: L, or 1 where all layers share them.
    mask_token: None where config.json names none. stop_ids: tokens that end an answer. is_folded: the cache's first two
    axes are one, because QNN takes no more than five; the bytes are the same.
    """

    export_version: int
    graph: Name
    batch: Rows
    block: Rows
    context: Tokens
    layers: Layers
    kv_heads: Heads
    head_dim: HeadSize
    vocab: Vocabulary
    dtype: Name
    mask_layers: Layers
    backend: Name
    quant: Name
    mask_token: TokenId | None = None
    stop_ids: Annotated[tuple[TokenId, ...], Meta(max_length=4096)] = ()
    is_folded: bool = False

    @property
    def cache_shape(self) -> tuple[int, ...]:
        """[L, 2, b, kv_heads, M, head_dim], or folded [L * 2, b, ...]; of the second axis, 0 is keys and 1 values."""
        sides = (2 * self.layers,) if self.is_folded else (self.layers, 2)
        return (*sides, self.batch, self.kv_heads, self.context, self.head_dim)

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every input, in the graph's order."""
        rows, first = (self.batch, self.block), self.mask_layers
        mask = (first, self.batch, 1, self.block, self.context + self.block)
        insert, keep = (first, self.batch, 1, self.context, self.block), (first, self.batch, 1, self.context, 1)
        return dict(zip(INPUTS, (rows, rows, self.cache_shape, mask, insert, keep), strict=True))
