"""The manifest's fields for fused prefill/decode graphs."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle.bounds import Rows

SPARE_COLUMNS = 1
Past = Annotated[int, Meta(gt=SPARE_COLUMNS, le=1 << 24)]


class FusedSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the fused graphs of a bundle have in common.

    pd_total_len: rows N of each graph that takes a chunk of a prompt beside decodes. pd_prefill_len: how many of them
    are the prompt's, N - D. decode_slots: D, the sequences that such a pass decodes. past: columns of every cache.
    kv_update_on_device: graphs also give the updated caches; otherwise the host writes what is new.
    """

    pd_total_len: Annotated[tuple[Rows, ...], Meta(min_length=1, max_length=256)]
    pd_prefill_len: Annotated[tuple[Rows, ...], Meta(min_length=1, max_length=256)]
    decode_slots: Rows
    past: Past
    kv_update_on_device: bool = False

    @property
    def columns(self) -> int:
        """Columns of a cache that hold tokens: graphs write the rows that hold nothing into the last one."""
        return self.past - SPARE_COLUMNS
