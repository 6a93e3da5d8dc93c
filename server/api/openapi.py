"""The OpenAPI document: what it says of the answers of a route, and of what the middleware answers."""

import copy
from collections.abc import Collection, Mapping
from threading import Lock
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from engine.processes import installed_version
from server.http.errors import ErrorBody, error_format
from server.http.fields import Answer
from server.middleware.checks import OPEN_PATHS

REFERENCE = "#/components/schemas/"
_ERROR_TEXTS: Mapping[int | str, str] = {
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
EVENTS = "text/event-stream", "`data: ` events of {}, then `data: [DONE]`"
MESSAGES = "text/event-stream", "`data: ` events of {}, the last one `message_stop` or `error`"
SEGMENTS = "text/event-stream", "`data: ` events of {}"
LINES = "application/x-ndjson", "lines of {}, the last one with `done`"
MESSAGE_ERRORS = tuple(status for status in _ERROR_TEXTS if status not in (401, 409, 503))  # a full server is 529


def answers(
    whole: Any,
    *chunks: type[Answer],
    stream: tuple[str, str] = EVENTS,
    statuses: Collection[int | str] = (),
    model: type[Answer] = ErrorBody,
) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of a route that answers `whole` as JSON, or a stream of `chunks` when the request asked for one.
    whole: None where the route always streams. stream: media type and form. statuses: of its errors, by default all
    that a route with a body has. model: of its errors."""
    found: dict[str, Any] = {"model": whole, "description": "The answer."}
    if chunks:
        references = [{"$ref": f"{REFERENCE}{chunk.__name__}"} for chunk in chunks]
        said = stream[1].format(" and ".join(chunk.__name__ for chunk in chunks))
        event = references[0] if len(references) == 1 else {"anyOf": references}
        found["content"] = {stream[0]: {"schema": {"type": "string", "description": said}, "x-event-schema": event}}
    return {200: found} | error_answers(*statuses, model=model)


def error_answers(*statuses: int | str, model: type[Answer] = ErrorBody) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of these error answers, by default all that a route with a body has. 401 is added to all."""
    of_bodies = (status for status in _ERROR_TEXTS if status not in (401, 409, 529))
    return {status: {"model": model, "description": _ERROR_TEXTS[status]} for status in statuses or of_bodies}


SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "One of the server's API keys."},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key"},
}
REQUEST_ID = {"description": "Names this request in the server's log.", "schema": {"type": "string"}}
RETRY_AFTER = {"description": "Seconds to wait.", "schema": {"type": "string", "pattern": "^[0-9]+$"}}
CHALLENGE = {"description": "How to show a key.", "schema": {"type": "string", "const": "Bearer"}}


class OpenApiDocument:
    """The document of an app, made when it is first read: that takes half a second, which no start waits for."""

    def __init__(self, app: FastAPI, has_keys: bool) -> None:
        self._app = app
        self._has_keys = has_keys
        self._lock = Lock()
        self._made: dict[str, Any] | None = None

    def read(self) -> dict[str, Any]:
        """The document; called from a thread."""
        with self._lock:
            if self._made is None:
                self._made = describe(self._app, self._has_keys)
            return self._made


def describe(app: FastAPI, has_keys: bool) -> dict[str, Any]:
    """OpenAPI 3.1 of all routes of `app` behind its middleware."""
    version = installed_version("hexserve", "source")
    document = copy.deepcopy(get_openapi(title=app.title, version=version, routes=app.routes))
    schemas: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own error body, which no route sends
        schemas.pop(name, None)
    mode: Literal["serialization"] = "serialization"
    known: list[tuple[type[Answer], Literal["serialization"], TypeAdapter[Any]]]
    known = [(model, mode, TypeAdapter(model)) for model in _answer_models()]
    _, answers = TypeAdapter.json_schemas(known, ref_template=REFERENCE + "{model}")
    for name, schema in answers.get("$defs", {}).items():
        schemas.setdefault(name, schema)
    if has_keys:
        document["components"]["securitySchemes"] = SCHEMES
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            is_guarded = has_keys and not (path in OPEN_PATHS and method == "get")
            _complete(operation, method, error_format(path).model, is_guarded, has_keys)
    return document


def _answer_models() -> list[type[Answer]]:
    """All that have a route or an event of their own; what others are made of comes with these."""
    found = {each for model in Answer.__subclasses__() for each in model.__subclasses__() or (model,)}
    package = __name__.partition(".")[0]  # whoever imports us may have answers of another
    return sorted((each for each in found if each.__module__.startswith(package)), key=lambda model: model.__name__)


def _complete(operation: dict[str, Any], method: str, model: type[Answer], is_guarded: bool, has_keys: bool) -> None:
    responses: dict[str, Any] = operation["responses"]
    responses.pop("422", None)
    statuses = [403, 431, 500, *([401] if is_guarded else []), *([429] if method == "post" else [])]
    for status, answer in error_answers(*statuses, model=model).items():
        content = {"application/json": {"schema": {"$ref": REFERENCE + answer["model"].__name__}}}
        responses[str(status)] = {"description": answer["description"], "content": content}
    operation["responses"] = dict(sorted(responses.items()))
    for status, response in operation["responses"].items():
        shown = {"x-request-id": REQUEST_ID}
        if status in ("429", "503", "529"):
            shown["Retry-After"] = RETRY_AFTER
        if status == "401":
            shown["WWW-Authenticate"] = CHALLENGE
        response["headers"] = {**shown, **response.get("headers", {})}
    if has_keys:
        operation["security"] = [{name: []} for name in SCHEMES] if is_guarded else []
