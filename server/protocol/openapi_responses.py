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
        413: "The body is too large.",
        415: "The body is not application/json, or it is compressed.",
        429: "Too fast for the limits of this key or address; come back after Retry-After seconds.",
        431: "The request line and headers are too large.",
        500: "The server is at fault.",
        503: "Full, loading or shutting down; come back after Retry-After seconds.",
        504: "The request took too long.",
        "default": "Any other error has the same body.",
    }
)


def answers(whole: type[Answer], chunk: type[Answer]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of a route that answers `whole` as JSON, or a stream of `chunk` events when the request asked for one."""
    event = {
        "schema": {"type": "string", "description": f"`data: ` events of {chunk.__name__}, then `data: [DONE]`"},
        "x-event-schema": {"$ref": f"#/components/schemas/{chunk.__name__}"},
    }
    good = {"model": whole, "description": "The answer.", "content": {"text/event-stream": event}}
    return {200: good} | error_answers()


def errors(*statuses: int | str, model: type[Answer] = ErrorBody) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of the error answers of a route."""
    return {status: {"model": model, "description": _ERROR_TEXTS[status]} for status in statuses}


def error_answers(*statuses: int | str, model: type[Answer] = ErrorBody) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of these error answers, by default all that a route with a body has. 401 is added to all."""
    return errors(*(statuses or (status for status in _ERROR_TEXTS if status != 401)), model=model)
