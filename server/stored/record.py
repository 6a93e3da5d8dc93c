"""One stored response, as the database has it."""

from dataclasses import dataclass
from typing import Any

from server.stored.status import ResponseStatus

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResponseKey:
    """Whose response: nobody but its owner finds it."""

    owner: str
    id: str


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """One response. `input`: the items of its own request, those of `previous` not among them."""

    key: ResponseKey
    previous: str | None
    status: ResponseStatus
    is_background: bool
    response: Json
    input: list[Json]


class NotStored(Exception):
    """No such response, or it is somebody else's: callers cannot tell which."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.id = id


class NotContinuable(Exception):
    """A response that has not ended well cannot be followed by another one."""

    def __init__(self, id: str, status: ResponseStatus) -> None:
        super().__init__(id)
        self.id = id
        self.status = status


class ConversationTooLarge(Exception):
    """The responses before this one are more than one request may bring."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size)
        self.size = size
        self.limit = limit
