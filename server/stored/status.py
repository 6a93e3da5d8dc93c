"""The states of a response and the moves between them."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class ResponseStatus(StrEnum):
    """OpenAI's names."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDS = frozenset(
    {ResponseStatus.COMPLETED, ResponseStatus.INCOMPLETE, ResponseStatus.FAILED, ResponseStatus.CANCELLED}
)
MOVES: Mapping[ResponseStatus, frozenset[ResponseStatus]] = MappingProxyType(
    {
        ResponseStatus.QUEUED: frozenset({ResponseStatus.IN_PROGRESS, ResponseStatus.FAILED, ResponseStatus.CANCELLED}),
        ResponseStatus.IN_PROGRESS: _ENDS,
        **{end: frozenset() for end in _ENDS},
    }
)
CONTINUABLE = (ResponseStatus.COMPLETED, ResponseStatus.INCOMPLETE)  # what a next response may follow


class IllegalMove(Exception):
    """A response cannot go from one state to the other."""

    def __init__(self, now: ResponseStatus, to: ResponseStatus) -> None:
        super().__init__(f"a response that is {now} cannot become {to}")


def check_move(now: ResponseStatus, to: ResponseStatus) -> None:
    """Raise IllegalMove unless the table allows it."""
    if to not in MOVES[now]:
        raise IllegalMove(now, to)
