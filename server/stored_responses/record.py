"""One stored response as the database has it, and its states."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ResponseStatus(StrEnum):
    """OpenAI's names."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


CONTINUABLE = (ResponseStatus.COMPLETED, ResponseStatus.INCOMPLETE)  # what a next response may follow


Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResponseKey:
    """Whose response: nobody but its owner finds it."""

    owner: str
    id: str


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """One response. `input`: the items of its own request, those of `previous` not among them.

    response: what msgspec writes as the response; as JSON is read, in a record of the database.
    """

    key: ResponseKey
    previous: str | None
    status: ResponseStatus
    is_background: bool
    response: Any
    input: list[Json]


class NotStored(Exception):
    """No such response, or it is somebody else's: callers cannot tell which."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.id = id


class NotContinuable(Exception):
    """A response that no other one can follow; the message is the sentence for its caller."""


@dataclass(frozen=True, slots=True)
class Storing:
    """is_kept: the response is stored. is_background: it goes on without its client. previous: what it follows."""

    is_kept: bool = False
    is_background: bool = False
    previous: str | None = None
