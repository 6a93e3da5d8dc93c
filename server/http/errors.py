"""Every failure as an error body: the status of each engine error, pydantic's errors in OpenAI's words, other formats.
OpenAI's: {"error": {"message", "type", "param", "code"}}, all four always there, `code` a string or null."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.datastructures import Headers as RequestHeaders
from starlette.exceptions import HTTPException
from starlette.types import Scope

from engine.errors import Busy, CallerError, EngineFailure, HexserveError
from server.http.fields import Answer

MESSAGE_LIMIT = 1000
ECHO_LIMIT = 200
MAX_RETRY_AFTER_S = 60
Headers = tuple[tuple[str, str], ...]
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_INTERNAL = re.compile(r"0x[0-9a-fA-F]{4,}|(?:[A-Za-z]:\\|(?<![\w/])/)[\w.\-]+(?:[\\/][\w.\-]+)+")
_UNSUPPORTED = "Unsupported value: '{param}' does not support {got}. Supported values are: {expected}."
# pydantic's error type -> (OpenAI's code, sentence). {param}, {limit}, {got} and {expected} are filled in.
_SENTENCES: Mapping[str, tuple[str, str]] = {
    "missing": ("missing_required_parameter", "Missing required parameter: '{param}'."),
    "union_tag_not_found": ("missing_required_parameter", "Missing required parameter: '{param}'."),
    "extra_forbidden": ("unknown_parameter", "Unknown parameter: '{param}'."),
    "none_required": ("unsupported_parameter", "Unsupported parameter: '{param}' is not supported by this server."),
    "literal_error": ("unsupported_value", _UNSUPPORTED),
    "union_tag_invalid": ("unsupported_value", _UNSUPPORTED),
    "too_long": ("array_above_max_length", "Invalid '{param}': too many elements. At most {limit} are allowed."),
    "too_short": ("array_below_min_length", "Invalid '{param}': too few elements. At least {limit} are needed."),
    "string_too_long": ("string_above_max_length", "Invalid '{param}': string too long. At most {limit} characters."),
    "string_too_short": ("string_below_min_length", "Invalid '{param}': string too short. At least {limit} character."),
    "string_pattern_mismatch": ("invalid_value", "Invalid '{param}': {got} does not match {pattern}."),
    "finite_number": ("invalid_value", "Invalid '{param}': the number must be finite."),
    "greater_than_equal": ("{kind}_below_min_value", "Invalid '{param}': {got} is below the minimum of {limit}."),
    "greater_than": ("{kind}_below_min_value", "Invalid '{param}': {got} must be above {limit}."),
    "less_than_equal": ("{kind}_above_max_value", "Invalid '{param}': {got} is above the maximum of {limit}."),
    "less_than": ("{kind}_above_max_value", "Invalid '{param}': {got} must be below {limit}."),
}
_TYPE_NAMES: Mapping[str, str] = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a decimal",
    "bool_type": "a boolean",
    "float_parsing": "a decimal",
    "bool_parsing": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_GIVEN_NAMES: Mapping[type, str] = {
    bool: "a boolean",
    str: "a string",
    int: "an integer",
    float: "a decimal",
    list: "an array",
    dict: "an object",
}
_LIMIT_KEYS = ("max_length", "min_length", "ge", "gt", "le", "lt")
NO_THREADS = "thread_unsupported_request"  # Anthropic's code: their SDKs then send the whole conversation
MODELS_PATH = "/v1/models"  # asked in two formats: a header tells them apart
# Anthropic's name of an error by its status.
_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@dataclass(frozen=True, slots=True)
class WireError:
    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Headers = ()


class Refusal(HTTPException):
    """A request refused before the engine saw it. An HTTPException, because only those pass FastAPI's body reader. Not
    its own one, which would have every start import all of it before a worker begins."""

    def __init__(self, error: WireError) -> None:
        super().__init__(error.status, error.message)
        self.error = error


class ClientLeft(Exception):
    """The client closed its connection; no answer can be sent."""


class RequestTimeout(HexserveError):
    """The request lived longer than `request_timeout_s`."""

    @classmethod
    def after(cls, timeout_s: float) -> "RequestTimeout":
        return cls(f"The request took longer than {timeout_s:g} s.")


class StorageFailed(HexserveError):
    """Stored responses cannot be read or written: a full disk, a damaged database."""


def refuse(
    message: str, param: str | None = None, code: str | None = None, status: int = 400, headers: Headers = ()
) -> Refusal:
    return Refusal(WireError(status, bounded(message), param=param, code=code, headers=headers))


def bounded(text: str, limit: int = MESSAGE_LIMIT) -> str:
    clean = _CONTROL.sub(" ", text).encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def echo(value: object) -> str:
    """A bad value for a message, cut before it is copied."""
    shown = value[:ECHO_LIMIT] if isinstance(value, str) else value
    if isinstance(shown, int) and not isinstance(shown, bool) and abs(shown) >= 2**64:
        return "a huge integer"
    return bounded(_as_json(repr(shown)) if isinstance(shown, str | int | float) else type(shown).__name__, ECHO_LIMIT)


def from_engine(error: HexserveError) -> WireError:
    match error:
        case CallerError():
            return WireError(400, bounded(str(error)), param=error.param, code=error.code)
        case Busy():
            wait = max(1, math.ceil(min(MAX_RETRY_AFTER_S, error.retry_after_s)))
            return WireError(503, bounded(str(error)), "server_error", headers=(("Retry-After", str(wait)),))
        case RequestTimeout():
            return WireError(504, bounded(str(error)), "server_error", code="timeout")
        case EngineFailure() | StorageFailed():
            return WireError(500, bounded(_INTERNAL.sub("…", str(error))), "server_error")
        case _:
            return INTERNAL


INTERNAL = WireError(500, "The server had an error while processing the request.", "server_error")


def _as_json(names: str) -> str:
    """Python's names of JSON's literals, as callers write them."""
    return {"True": "true", "False": "false", "None": "null"}.get(names, names)


def from_validation(errors: Sequence[Mapping[str, Any]], body: object) -> WireError:
    """The deepest of pydantic's errors (a union reports one per branch) in OpenAI's words."""
    found = [(_path(error, body), error) for error in errors]
    path, error = max(found, key=lambda item: len(item[0]))  # max keeps the first of equals
    kind = str(error["type"])
    if kind in ("union_tag_invalid", "union_tag_not_found") and "discriminator" in error.get("ctx", {}):
        name = str(error["ctx"]["discriminator"]).strip("'")
        path = (*path, "type" if name.endswith("()") else name)  # a function looks at `type`, with a default
    code, sentence = _sentence(kind, error)
    context = error.get("ctx", {})
    got = context.get("tag", error.get("input")) if kind == "union_tag_invalid" else error.get("input")
    message = sentence.format(
        param=bounded(dotted(path), ECHO_LIMIT),
        limit=next((context[key] for key in _LIMIT_KEYS if key in context), ""),
        got=echo(got),
        pattern=context.get("pattern", ""),
        expected=bounded(_as_json(str(context.get("expected", context.get("expected_tags", "")))), ECHO_LIMIT),
    )
    return WireError(400, bounded(message), param=bounded(dotted(path), ECHO_LIMIT) or None, code=code)


def _sentence(kind: str, error: Mapping[str, Any]) -> tuple[str, str]:
    is_whole = any(key in _LIMIT_KEYS and isinstance(value, int) for key, value in error.get("ctx", {}).items())
    wanted = _TYPE_NAMES.get(kind, "another type")
    given = _GIVEN_NAMES.get(type(error.get("input")), "null")
    text = f"Invalid type for '{{param}}': expected {wanted}, but got {given} instead."
    code, sentence = _SENTENCES.get(kind, ("invalid_type", text))
    return code.format(kind="integer" if is_whole else "decimal"), sentence


def _path(error: Mapping[str, Any], body: object) -> tuple[str | int, ...]:
    """pydantic's location without the union tags in it: only steps that exist in the body, and a missing last one."""
    steps: list[str | int] = []
    value: Any = body
    location = error["loc"][1:] if error["loc"][:1] == ("body",) else error["loc"]
    for number, step in enumerate(location):
        if _is_tag(value, location[number:], error):
            continue
        is_element = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if is_element or (isinstance(value, dict) and step in value):
            value = value[step]
            steps.append(step)
        elif error["type"] == "missing" and number == len(location) - 1:
            steps.append(step)
    return tuple(steps)


def _is_tag(value: object, location: Sequence[str | int], error: Mapping[str, Any]) -> bool:
    """Whether the next step is a union's tag although the object has a key of this name: the step behind it is a key
    of the object too, and leads to what is wrong if it is the last one."""
    if not isinstance(value, dict) or len(location) < 2 or location[0] not in (value.get("type"), value.get("role")):
        return False
    if len(location) > 2:
        return location[1] in value
    return (value if error["type"] == "missing" else value.get(location[1])) is error.get("input")


def dotted(path: Sequence[str | int]) -> str:
    """('messages', 0, 'role') -> 'messages[0].role'."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


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


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """What errors look like below a path: their model, and the body of one. busy: the status of a full server."""

    prefix: str
    model: type[Answer]
    body: Callable[[WireError], Answer]
    busy: int = 503


def openai_body(error: WireError) -> ErrorBody:
    return ErrorBody(ErrorDetail(error.message, error.type, error.param, error.code))


def anthropic_error(error: WireError) -> AnthropicErrorDetail:
    """What Anthropic's clients are told, also in an event of a stream."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return AnthropicErrorDetail(kind, error.message, AnthropicErrorCode() if error.code == NO_THREADS else UNSET)


OPENAI_FORMAT = ErrorFormat("", ErrorBody, openai_body)
ANTHROPIC_FORMAT = ErrorFormat(
    "/v1/messages", AnthropicError, lambda error: AnthropicError(error=anthropic_error(error)), busy=529
)
FORMATS = (ErrorFormat("/api/", OllamaError, lambda error: OllamaError(error.message)), ANTHROPIC_FORMAT)


def error_format(path: str, speaks_anthropic: bool = False) -> ErrorFormat:
    """How errors are written that answer a request for this path. speaks_anthropic: see below."""
    if speaks_anthropic and path.startswith(MODELS_PATH):
        return ANTHROPIC_FORMAT
    return next((one for one in FORMATS if path.startswith(one.prefix)), OPENAI_FORMAT)


def speaks_anthropic(headers: Mapping[str, str]) -> bool:
    """Whether a request names a version of Anthropic's API, as their SDKs always do."""
    return "anthropic-version" in headers


def request_format(scope: Scope) -> ErrorFormat:
    return error_format(scope["path"], speaks_anthropic(RequestHeaders(scope=scope)))


def encoded_error(error: WireError, scope: Scope) -> tuple[int, bytes]:
    """Status and JSON body of an error that answers this request."""
    form = request_format(scope)
    body = form.body(error)
    if isinstance(body, AnthropicError):
        body.request_id = request_id_of(scope)
    return form.busy if error.status == 503 else error.status, msgspec.json.encode(body)


def request_id_of(scope: Scope) -> str:
    """The id that the access log gave this request; "" where no access log is around the app."""
    found: str = scope.get("state", {}).get("request_id", "")
    return found
