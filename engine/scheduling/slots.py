"""Which prompts may take rows of the next pass. Of fused graphs a pass has one prompt at most."""

from collections.abc import Collection, Iterable

from engine.bundle.variant import PassShape, ShapeTable
from engine.scheduling.queues import open_rows
from engine.scheduling.sequence import Sequence

# Of a pass that also decodes: each costs the host a log-softmax over the vocabulary, which no graph's time shows.
PROMPT_LOGPROB_ROWS = 32
FUSED_LOGPROB_ROWS = 1  # a fused graph gives logits of a prompt's last row only


def prefills_of(
    shapes: ShapeTable, queue: Iterable[Sequence], held: Collection[str], has_decodes: bool
) -> list[tuple[Sequence, int]]:
    """Prompts and the rows each may take, oldest first; of fused graphs only the first that may take any."""
    if shapes.slots:
        return [(sequence, rows) for sequence, rows in open_rows(queue, held, FUSED_LOGPROB_ROWS) if rows > 0][:1]
    return open_rows(queue, held, PROMPT_LOGPROB_ROWS if has_decodes else shapes.max_rows)


def slot_rows(shape: PassShape, slots: int, decodes: int, prefill_rows: int) -> tuple[int, int]:
    """How many decodes and prefill rows a pass serves: neither takes rows of the other."""
    decode_rows = min(shape.rows, slots)
    return min(decodes, decode_rows), min(prefill_rows, shape.rows - decode_rows)
