"""What the OpenAPI document says about the answers of a route."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from server.protocol.errors import ErrorBody
from server.protocol.fields import Answer

_ERROR_TEXTS: Mapping[int | str, str] = MappingProxyType(
    {
        400: "The request is wrong; `param` names the field.",
        401: "The API key is missing or wrong.",
        403: "The Host is not served here.",
        404: "Unknown model or path.",
        408: "The body came too slowly.",
        409: "Another server of the same data folder generates this response.",
        413: "The body is too large.",
        415: "The body is not application/json, or it is compressed.",
        429: "Too fast for the limits of this key or address; come back after Retry-After seconds.",
        431: "The request line and headers are too large.",
        500: "The server is at fault.",
        503: "Full, loading or shutting down; come back after Retry-After seconds.",
        504: "The request took too long.",
        529: "Full, loading or shutting down; come back after Retry-After seconds.",
        "default": "Any other error has the same body.",
    }
)


def answers(whole: type[Answer], chunk: type[Answer] | None = None, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of a route that answers `whole` as JSON, or a stream of `chunk` events when the request asked for one.

    statuses: of its errors, by default all that a route with a body has.
    """
    if chunk is None:
        return {200: {"model": whole, "description": "The answer."}} | error_answers(*statuses)
    said = f"`data: ` events of {chunk.__name__}, then `data: [DONE]`"
    return _answers(whole, "text/event-stream", said, chunk) | error_answers(*statuses)


def whole_answers(whole: type[Answer], error: type[Answer]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of a route that answers `whole` as JSON, with errors of another format."""
    return {200: {"model": whole, "description": "The answer."}} | error_answers(model=error)


def message_answers(whole: type[Answer], chunk: type[Answer], error: type[Answer]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of a route in Anthropic's format: as `answers`, but for the end of a stream and the errors."""
    said = f"`data: ` events of {chunk.__name__}, the last one `message_stop` or `error`"
    return _answers(whole, "text/event-stream", said, chunk) | message_errors(error)


def message_errors(error: type[Answer]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of the error answers of such a route: a server that is full is 529."""
    return errors(*(status for status in _ERROR_TEXTS if status not in (401, 409, 503)), model=error)


def line_answers(whole: type[Answer], error: type[Answer]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of a route that streams lines of `whole`, or answers one as JSON when the request asked for no stream."""
    said = f"lines of {whole.__name__}, the last one with `done`"
    return _answers(whole, "application/x-ndjson", said, whole) | error_answers(model=error)


def event_answers(event: type[Answer]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of a route without a body that always answers with a stream of events."""
    said = f"`data: ` events of {event.__name__}, then `data: [DONE]`"
    content = {"text/event-stream": _stream(said, event)}
    return {200: {"description": "The events.", "content": content}} | errors(404, 503)


def _answers(whole: type[Answer], media_type: str, said: str, chunk: type[Answer]) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": whole, "description": "The answer.", "content": {media_type: _stream(said, chunk)}}}


def _stream(said: str, chunk: type[Answer]) -> dict[str, Any]:
    return {
        "schema": {"type": "string", "description": said},
        "x-event-schema": {"$ref": f"#/components/schemas/{chunk.__name__}"},
    }


def errors(*statuses: int | str, model: type[Answer] = ErrorBody) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of the error answers of a route."""
    return {status: {"model": model, "description": _ERROR_TEXTS[status]} for status in statuses}


def error_answers(*statuses: int | str, model: type[Answer] = ErrorBody) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of these error answers, by default all that a route with a body has. 401 is added to all."""
    return errors(*(statuses or (status for status in _ERROR_TEXTS if status not in (401, 409, 529))), model=model)
