"""How much of the passes texts get that become vectors, while somebody waits for tokens.

Tokens come first: beside them texts have at most so many rows as a setting allows, and what would be padding. Once they
have waited for some passes they get that many before any prompt does, so that they always go on.
"""

from collections.abc import Iterable, Sequence

from engine.bundle.variant import ShapeTable
from engine.scheduling.pool_queues import PoolQueues
from engine.scheduling.sequence import Sequence as Progress

PATIENCE = 8  # passes without a row for any text, after which texts have a turn

Rows = list[tuple[Progress, int]]


class PooledTurns:
    """rows: that texts may take of a pass while a sequence of any pool generates, at most a quarter of the most."""

    def __init__(self, rows: int, pools: Sequence[PoolQueues], shapes: ShapeTable) -> None:
        self._rows = min(rows, max(shapes.unit, shapes.max_rows // 4))
        self._pools = pools
        self._most_rows = shapes.max_rows // shapes.unit

    @property
    def is_contended(self) -> bool:
        """Whether there are both: texts that become vectors, and sequences that generate."""
        kinds = {sequence.is_pooled for pool in self._pools for sequence in pool.running()}
        return len(kinds) == 2

    def first(self, busy: Iterable[PoolQueues]) -> list[PoolQueues]:
        """The pools that may have the next pass: those that generate, and those whose texts have a turn."""
        found = list(busy)
        return [pool for pool in found if _generates(pool) or pool.pooled_waits >= PATIENCE] or found

    def is_due(self, pool: PoolQueues) -> bool:
        """Whether its texts have a turn."""
        return pool.pooled_waits >= PATIENCE

    def order(self, pool: PoolQueues, sequence: Progress) -> int:
        """Which pool a newcomer had better go to: the one with most pages for it, texts that give way not counted."""
        texts = () if sequence.is_pooled else (len(each.pages) for each in pool.running() if each.is_pooled)
        return -(pool.available(1) + sum(texts))

    def newcomers(self, pool: PoolQueues, sequence: Progress) -> int:
        """For how many sequences more there must be rows when this one comes: a text leaves room for all others."""
        if not (sequence.is_pooled and any(_generates(each) for each in self._pools)):
            return 1
        return max(1, self._most_rows - pool.population)

    def in_the_way(self) -> list[tuple[PoolQueues, Progress]]:
        """Texts in columns that a pass of most rows does not span: while they are there, prompts have fewer rows."""
        if not self.is_contended:
            return []
        limits = {pool.index: pool.page_limit(max(0, self._most_rows - pool.population)) for pool in self._pools}
        texts = [(pool, sequence) for pool in self._pools for sequence in pool.running() if sequence.is_pooled]
        return [(pool, text) for pool, text in texts if max(text.pages, default=-1) >= limits[pool.index]]

    def bounded(self, pool: PoolQueues, prefills: Rows) -> Rows:
        """Of the rows that prompts may take those that are allowed now, in the order in which they are to take them."""
        if not self.is_contended:
            return prefills
        left, texts = self._rows, []
        for sequence, rows in prefills:
            if sequence.is_pooled and left > 0:
                texts.append((sequence, min(rows, left)))
                left -= rows
        prompts = [(sequence, rows) for sequence, rows in prefills if not sequence.is_pooled]
        return texts + prompts if self.is_due(pool) else prompts + texts

    def filled(self, taken: Rows, prefills: Rows, padding: int) -> Rows:
        """The rows that prompts take, and in place of padding more rows of texts."""
        rows = {sequence.id: (sequence, count) for sequence, count in taken}
        for sequence, most in prefills:
            if sequence.is_pooled and padding > 0:
                own = rows.get(sequence.id, (sequence, 0))[1]
                rows[sequence.id] = sequence, min(most, own + padding)
                padding -= rows[sequence.id][1] - own
        return list(rows.values())

    def count(self, served: PoolQueues, prefills: Rows) -> None:
        """A pass is planned: whose texts have to wait, and for how long now."""
        is_contended = self.is_contended
        for pool in self._pools:
            waits = is_contended and any(sequence.is_pooled for sequence in pool.prefill_queue.values())
            has_rows = pool is served and any(sequence.is_pooled for sequence, _ in prefills)
            pool.pooled_waits = pool.pooled_waits + 1 if waits and not has_rows else 0


def _generates(pool: PoolQueues) -> bool:
    return any(not sequence.is_pooled for sequence in pool.running())
