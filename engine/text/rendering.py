"""What a chat template is asked and what it answers, as values and as frames. Nothing here renders anything. Frames are
JSON in UTF-8, lone surrogates included: what a caller's JSON may hold reaches the template unchanged."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from engine.errors import InvalidRequest
from engine.files import TEMPLATE_BYTES, read_text, reading

MEMORY_BYTES = 1024**3  # of address space; a prompt as long as a request may make it takes a part of it
TOO_MUCH_MEMORY = f"The chat template takes more than {MEMORY_BYTES // 1024**2} MiB of memory."


class RenderTooLong(InvalidRequest):
    """The prompt text passed its bound."""


@dataclass(frozen=True, slots=True)
class TemplateOpening:
    """The template that a renderer is for. compile_s bounds compiling it, longest_s each rendering."""

    source: str
    compile_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class RenderRequest:
    """One conversation. `variables` are checked options and the special tokens' names; max_chars bounds the text."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]
    max_chars: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """The prompt text, or the sentence that says why there is none; is_too_long: because it passed its bound."""

    text: str = ""
    error: str = ""
    is_too_long: bool = False

    def checked(self) -> str:
        """The text; RenderTooLong or InvalidRequest when there is none."""
        if self.error:
            raise (RenderTooLong if self.is_too_long else InvalidRequest)(self.error, "messages")
        return self.text


Framed = TypeVar("Framed", TemplateOpening, RenderRequest, Rendered)


def encode_request(request: RenderRequest) -> bytes:
    """The body of a frame; InvalidRequest for what JSON cannot say."""
    try:
        return encode(request)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"The chat template cannot be given these messages: {error}", "messages") from None


def encode(value: Framed) -> bytes:
    named = {field.name: getattr(value, field.name) for field in fields(value)}  # asdict would copy every message
    return json.dumps(named, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode(body: bytes, kind: type[Framed]) -> Framed:
    return kind(**json.loads(body.decode("utf-8", "surrogatepass")))


def too_slow(longest_s: float) -> str:
    """What a request hears whose template does not come to an end."""
    return f"The chat template ran for more than {longest_s:g} s."


def read_template(path: Path) -> str:
    """The text of a template file; BundleError when it cannot be read."""
    with reading(path):
        return read_text(path, TEMPLATE_BYTES)


@dataclass(frozen=True, slots=True)
class TextFacts:
    """Special tokens and the source of the chat template; None where the bundle has none."""

    bos_token: str | None
    eos_token: str | None
    add_bos: bool
    special_tokens: tuple[str, ...]
    chat_template: str | None
