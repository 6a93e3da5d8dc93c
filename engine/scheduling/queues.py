"""Who of a queue may take rows now. `held` are requests whose next token cannot be chosen yet."""

from collections.abc import Collection, Mapping

from engine.sequence import Sequence


def without(queue: Mapping[str, Sequence], held: Collection[str]) -> list[Sequence]:
    """The sequences of a queue that are not held."""
    return [sequence for name, sequence in queue.items() if name not in held]


def rows_open(sequence: Sequence, held: Collection[str]) -> int:
    """Rows a prefill may take: the last one would yield the next token, so a held one leaves it."""
    return sequence.rows_wanted - (sequence.request.request_id in held)


def take_prefill(queue: list[Sequence], rows: int, held: Collection[str]) -> list[tuple[Sequence, int]]:
    """Oldest first: each takes what it wants of the rows that are left."""
    taken = []
    for sequence in queue:
        share = min(rows, rows_open(sequence, held))
        if share > 0:
            taken.append((sequence, share))
            rows -= share
    return taken
