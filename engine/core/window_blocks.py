"""Which blocks still have their slots of layers with a window: those that sequences see, and known prefixes.
A sequence holds the slots of such layers as far back as its next row sees. What falls behind is kept for others while
there is room, least recently used first to go; the layers that see everything keep theirs. So a newcomer can start from
a known prefix only where the slots of the last window are there. Where no layer sees everything, a pool takes whole
blocks back."""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence

from engine.core.kv_blocks import Sight

KEPT_SHARE = 4  # newcomers mostly start near a prefix's end: so many times fewer slots than other layers have


def window_budget(window: int, slots: int, rows: int, block_size: int) -> int:
    """Blocks of layers with a window beside a pool of `slots`: a sequence and its widest step fit at least."""
    if not window:
        return 0
    return -(-min(slots, max(slots // KEPT_SHARE, window + rows + 2 * block_size)) // block_size)


class WindowBlocks:
    """Owns the counts for one pool. window: slots that a row of the layers with the widest one sees, 0 = there are no
    such layers, and nothing is counted. limit: most blocks, held and kept together. rows: most of a step."""

    def __init__(self, window: int = 0, block_size: int = 1, limit: int = 0, rows: int = 0) -> None:
        self.window = window
        self.block_size = block_size
        self._limit = limit
        self.sight = Sight(window, block_size, rows)
        # Sole owner of these four; `held` is the sum of `_holders`.
        self._holders: Counter[int] = Counter()
        self.held = 0
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._dropped: set[int] = set()

    def __contains__(self, block: int) -> bool:
        return not self.window or block in self._holders or block in self._kept

    @property
    def kept(self) -> int:
        return len(self._kept)

    def usable(self, blocks: Sequence[int | None]) -> int:
        """How many of the blocks of a known prefix a newcomer can go on from."""
        if not self.window:
            return len(blocks)
        return self.sight.usable([block is not None and block in self for block in blocks])

    def wanted(self, tokens: int) -> int:
        """Most blocks that a sequence of so many tokens ever holds."""
        return min(self.sight.held(tokens), self._limit) if self.window else 0

    def has_room(self, blocks: int) -> bool:
        """Whether so many more may be held; those that are kept give way."""
        return not self.window or self.held + blocks <= self._limit

    def hold(self, blocks: Collection[int]) -> None:
        """A sequence sees these from now on."""
        if not self.window:
            return
        self._holders.update(blocks)
        self.held += len(blocks)
        for block in blocks:
            self._kept.pop(block, None)
        self._dropped.difference_update(blocks)
        self._trim()

    def release(self, blocks: Iterable[int], known: Collection[int]) -> None:
        """A sequence sees these no more. known: those of them whose contents others could ask for: they are kept."""
        if not self.window:
            return
        for block in blocks:
            self._holders[block] -= 1
            self.held -= 1
            if not self._holders[block]:
                del self._holders[block]
                if block in known:
                    self._kept[block] = None
                else:
                    self._dropped.add(block)
        self._trim()

    def forget(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._kept.pop(block, None)
            self._dropped.discard(block)

    def take_dropped(self) -> frozenset[int]:
        """Blocks whose slots of such layers went since the last call."""
        dropped, self._dropped = frozenset(self._dropped), set()
        return dropped

    def _trim(self) -> None:
        while self._kept and self.held + len(self._kept) > self._limit:
            self._dropped.add(self._kept.popitem(last=False)[0])
