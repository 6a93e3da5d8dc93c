"""Errors in the format of the path they answer. OpenAI's where no other is named."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from server.http.errors import WireError
from server.protocol.anthropic.errors import AnthropicError
from server.protocol.errors import ErrorBody
from server.protocol.fields import Answer
from server.protocol.ollama.errors import OllamaError

NO_THREADS = "thread_unsupported_request"  # Anthropic's code: their SDKs then send the whole conversation
MODELS_PATH = "/v1/models"  # asked in two formats: a header tells them apart
# Anthropic's name of an error by its status.
_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
)


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """What errors look like below a path: their pydantic model, and the JSON body of one.

    busy: the status of a server that is full. names_request: the body has the request's id.
    """

    prefix: str
    model: type[Answer]
    body: Callable[[WireError], dict[str, Any]]
    busy: int = 503
    names_request: bool = False

    def status(self, error: WireError) -> int:
        """The HTTP status of an error."""
        return self.busy if error.status == 503 else error.status


def ollama_body(error: WireError) -> dict[str, Any]:
    """Only the sentence; the status says the rest."""
    return {"error": error.message}


def anthropic_body(error: WireError) -> dict[str, Any]:
    """Anthropic's, also as an event of a stream; the request's id comes beside it."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    details = {"details": {"error_code": error.code}} if error.code == NO_THREADS else {}
    return {"type": "error", "error": {"type": kind, "message": error.message} | details}


OPENAI_FORMAT = ErrorFormat("", ErrorBody, WireError.body)
ANTHROPIC_FORMAT = ErrorFormat("/v1/messages", AnthropicError, anthropic_body, busy=529, names_request=True)
FORMATS = (ErrorFormat("/api/", OllamaError, ollama_body), ANTHROPIC_FORMAT)


def error_format(path: str, speaks_anthropic: bool = False) -> ErrorFormat:
    """How errors are written that answer a request for this path. speaks_anthropic: see below."""
    if speaks_anthropic and path.startswith(MODELS_PATH):
        return ANTHROPIC_FORMAT
    return next((one for one in FORMATS if path.startswith(one.prefix)), OPENAI_FORMAT)


def speaks_anthropic(headers: Mapping[str, str]) -> bool:
    """Whether a request names a version of Anthropic's API, as their SDKs always do."""
    return "anthropic-version" in headers


def request_format(scope: Scope) -> ErrorFormat:
    """How errors are written that answer this request."""
    return error_format(scope["path"], speaks_anthropic(Headers(scope=scope)))


def encoded_error(error: WireError, scope: Scope) -> tuple[int, bytes]:
    """Status and JSON body of an error that answers this request."""
    form = request_format(scope)
    body = form.body(error) | ({"request_id": request_id_of(scope)} if form.names_request else {})
    return form.status(error), msgspec.json.encode(body)


def request_id_of(scope: Scope) -> str:
    """The id that the access log gave this request; "" where no access log is around the app."""
    found: str = scope.get("state", {}).get("request_id", "")
    return found
