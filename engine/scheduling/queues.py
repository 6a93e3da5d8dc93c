"""Which sequences of a queue may take rows now. `held` are ids of sequences whose next token cannot be sampled yet."""

from collections.abc import Collection, Iterable, Mapping

from engine.scheduling.sequence import Sequence


def without(queue: Mapping[str, Sequence], held: Collection[str]) -> list[Sequence]:
    """The sequences of a queue that are not held."""
    return [sequence for sequence_id, sequence in queue.items() if sequence_id not in held]


def open_rows(queue: Iterable[Sequence], held: Collection[str], logprob_rows: int) -> list[tuple[Sequence, int]]:
    """Rows each prefill may take, oldest first. The last one would yield the next token, so a held one leaves it.

    logprob_rows: most rows in all that the log-probabilities of prompt tokens are read from.
    """
    found = []
    for sequence in sorted(queue, key=lambda s: s.rank):
        rows = sequence.rows_wanted - (sequence.id in held)
        if not sequence.has_prompt_logprobs:
            rows = min(rows, logprob_rows)
            logprob_rows -= rows
        found.append((sequence, rows))
    return found


def kv_only_rows(prefills: Iterable[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
    """Of the rows each prefill may take, those before the first whose logits are read."""
    return [(sequence, min(rows, sequence.first_logit_row - sequence.computed)) for sequence, rows in prefills]


def take_rows(wanted: Iterable[tuple[Sequence, int]], rows: int) -> list[tuple[Sequence, int]]:
    """Share out `rows`: in the order given, each sequence takes up to its number from what is left, in whole blocks."""
    taken = []
    for sequence, most in wanted:
        share = min(rows, most)
        share -= share % sequence.block_length
        if share > 0:
            taken.append((sequence, share))
            rows -= share
    return taken


def take_turns(ready: Iterable[Sequence], rows: int) -> list[tuple[Sequence, int]]:
    """Share out `rows` to sequences that decode, those first that were served the longest ago."""
    by_turn = sorted(ready, key=lambda sequence: (sequence.last_served, sequence.rank))
    return take_rows([(sequence, sequence.rows_wanted) for sequence in by_turn], rows)


def rows_of(ready: Iterable[Sequence]) -> int:
    """Rows that sequences want which decode."""
    return sum(sequence.rows_wanted for sequence in ready)


def guessing(decodes: Iterable[tuple[Sequence, int]]) -> list[Sequence]:
    """Those that may have guesses behind their last token: a block has no last one."""
    return [sequence for sequence, _ in decodes if sequence.block is None]
