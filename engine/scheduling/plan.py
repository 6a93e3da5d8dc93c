"""What one step will run, decided before anything runs."""

from dataclasses import dataclass
from enum import StrEnum

from engine.bundle.variant import PassShape


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one sequence.

    tokens: one per row. first_position: of the first row; the rest follow. pages: of the columns already
    computed (`past_columns` of them count). targets: the column each row's KV goes to if it is kept.
    logit_rows: how many of the last rows need logits. scored: the known tokens that follow the first of those rows,
    whose probability was asked for; the other logit rows choose. causal False: the rows see each other both ways.
    """

    sequence_id: str
    tokens: tuple[int, ...]
    first_position: int
    pages: tuple[int, ...]
    past_columns: int
    targets: tuple[int, ...]
    logit_rows: int
    scored: tuple[int, ...] = ()
    causal: bool = True

    @property
    def chosen_rows(self) -> int:
        """Logit rows from which a token is chosen."""
        return self.logit_rows - len(self.scored)


class MoveKind(StrEnum):
    """What happens to a page's contents."""

    OFFLOAD = "offload"  # copied from the page to the host cache
    LOAD = "load"  # copied from the host cache to the page
    EVICT = "evict"  # the host cache's copy is forgotten; the page is irrelevant


@dataclass(frozen=True, slots=True)
class PageMove:
    """One copy between a pool and the host cache. Moves are done before the pass, strictly in order."""

    kind: MoveKind
    key: bytes
    pool: int = 0
    page: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One pass over one pool. Prefill segments come first, single decode rows last; the pass is right-aligned."""

    shape: PassShape
    pool: int
    segments: tuple[Segment, ...]
    moves: tuple[PageMove, ...] = ()

    @property
    def rows_used(self) -> int:
        """Useful rows; the rest of `shape.rows` is padding."""
        return sum(len(segment.tokens) for segment in self.segments)
