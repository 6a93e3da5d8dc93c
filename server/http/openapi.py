"""The OpenAPI document of the routes and of what the guard around them answers."""

import copy
import importlib.metadata
from threading import Lock
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from server.http.error_formats import error_format
from server.http.guard.layer import OPEN_PATHS
from server.protocol.fields import Answer
from server.protocol.openapi_responses import error_answers

REFERENCE = "#/components/schemas/"
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
    """OpenAPI 3.1 of all routes of `app` behind its guard."""
    try:
        version = importlib.metadata.version("hexserve")
    except importlib.metadata.PackageNotFoundError:
        version = "source"
    document = copy.deepcopy(get_openapi(title=app.title, version=version, routes=app.routes))
    schemas: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own error body, which no route sends
        schemas.pop(name, None)
    _, answers = models_json_schema(
        [(m, "serialization") for m in _answer_models()], ref_template=REFERENCE + "{model}"
    )
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
    return sorted(Answer.__subclasses__(), key=lambda model: model.__name__)


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
