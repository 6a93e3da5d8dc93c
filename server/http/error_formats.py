"""The body of every answer that is not a success."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.datastructures import Headers
from starlette.types import Scope

from server.http.errors import WireError
from server.http.fields import Answer


class ErrorDetail(Answer):
    """What went wrong; `param` is the dotted path of the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Answer):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class AnthropicErrorCode(Answer):
    """What a client can do something about by itself."""

    error_code: Literal["thread_unsupported_request"] = "thread_unsupported_request"


class AnthropicErrorDetail(Answer):
    """What went wrong; the message names the field at fault."""

    type: str
    message: str
    details: AnthropicErrorCode | UnsetType = UNSET


class AnthropicError(Answer, kw_only=True):
    """The body of every answer that is not a success."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetail
    request_id: str = ""


class OllamaError(Answer):
    """What went wrong, in a sentence; also the last line of a stream that cannot go on."""

    error: str


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

    busy: the status of a server that is full.
    """

    prefix: str
    model: type[Answer]
    body: Callable[[WireError], Answer]
    busy: int = 503

    def status(self, error: WireError) -> int:
        return self.busy if error.status == 503 else error.status


def openai_body(error: WireError) -> ErrorBody:
    """OpenAI's, everywhere else."""
    return ErrorBody(ErrorDetail(error.message, error.type, error.param, error.code))


def ollama_body(error: WireError) -> OllamaError:
    """Only the sentence; the status says the rest."""
    return OllamaError(error.message)


def anthropic_error(error: WireError) -> AnthropicErrorDetail:
    """What Anthropic's clients are told, also in an event of a stream."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return AnthropicErrorDetail(kind, error.message, AnthropicErrorCode() if error.code == NO_THREADS else UNSET)


def anthropic_body(error: WireError) -> AnthropicError:
    """Anthropic's, still without the request's id."""
    return AnthropicError(error=anthropic_error(error))


OPENAI_FORMAT = ErrorFormat("", ErrorBody, openai_body)
ANTHROPIC_FORMAT = ErrorFormat("/v1/messages", AnthropicError, anthropic_body, busy=529)
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
    return error_format(scope["path"], speaks_anthropic(Headers(scope=scope)))


def encoded_error(error: WireError, scope: Scope) -> tuple[int, bytes]:
    """Status and JSON body of an error that answers this request."""
    form = request_format(scope)
    body = form.body(error)
    if isinstance(body, AnthropicError):
        body.request_id = request_id_of(scope)
    return form.status(error), msgspec.json.encode(body)


def request_id_of(scope: Scope) -> str:
    """The id that the access log gave this request; "" where no access log is around the app."""
    found: str = scope.get("state", {}).get("request_id", "")
    return found
