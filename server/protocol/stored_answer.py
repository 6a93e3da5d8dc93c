"""The other answers of /v1/responses/{id}."""

from typing import Any, Literal

from server.protocol.fields import Answer


class DeletedResponse(Answer):
    """A response that is no longer there."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ResponseItems(Answer):
    """A page of what a response answered; the items have the shape of input and output items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
