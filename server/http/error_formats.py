"""The body of an error in the format of the path it answers. OpenAI's where no other is named."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from server.http.errors import WireError
from server.protocol.errors import ErrorBody
from server.protocol.fields import Answer
from server.protocol.ollama.errors import OllamaError


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """What errors look like below a path: their pydantic model, and the JSON body of one."""

    prefix: str
    model: type[Answer]
    body: Callable[[WireError], dict[str, Any]]


def ollama_body(error: WireError) -> dict[str, Any]:
    """Only the sentence; the status says the rest."""
    return {"error": error.message}


OPENAI_FORMAT = ErrorFormat("", ErrorBody, WireError.body)
FORMATS = (ErrorFormat("/api/", OllamaError, ollama_body),)


def error_format(path: str) -> ErrorFormat:
    """How errors are written that answer a request for this path."""
    return next((one for one in FORMATS if path.startswith(one.prefix)), OPENAI_FORMAT)
