"""Chat messages to prompt text with the model's own Jinja template, in a sandbox.

The environment gives templates what Hugging Face's `apply_chat_template` gives them: trim_blocks, lstrip_blocks,
loop controls, `raise_exception`, `strftime_now`, a `tojson` that keeps Unicode and HTML signs, and
`{% generation %}` blocks.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from engine.errors import BundleError, InvalidRequest

LONGEST_RENDER_S = 5.0
ALLOWED_OPTIONS: dict[str, tuple[type, ...]] = {
    "add_generation_prompt": (bool,),
    "enable_thinking": (bool,),
    "thinking": (bool,),
    "preserve_thinking": (bool,),
    "reasoning_effort": (str,),
    "date_string": (str,),
}
LONGEST_OPTION_CHARS = 64


class RenderTooLong(InvalidRequest):
    """The prompt text passed its bound."""


class TemplateRefusal(jinja2.TemplateError):
    """What a template says through `raise_exception`."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template. Rendering is bounded in time and in characters; `clock` counts seconds."""

    def __init__(self, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        """BundleError when `source` is not a template."""
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise BundleError(f"the chat template cannot be compiled: {error}") from error
        self.source = source
        self._clock = clock

    @classmethod
    def load(cls, path: Path) -> "ChatTemplate":
        """Read a template file; BundleError when it cannot be used."""
        try:
            return cls(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"{path} cannot be read: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        max_chars: int,
    ) -> str:
        """Prompt text. `variables` are checked options and the special tokens' names.

        Raises InvalidRequest with the template's own message, or when it takes too long or says too much.
        """
        deadline = self._clock() + LONGEST_RENDER_S
        pieces: list[str] = []
        chars = 0
        try:
            for piece in self._template.generate(messages=messages, tools=tools, **variables):
                chars += len(piece)
                if chars > max_chars:
                    raise RenderTooLong(f"The rendered prompt is longer than {max_chars} characters.", "messages")
                if self._clock() > deadline:
                    raise InvalidRequest(f"The chat template ran for more than {LONGEST_RENDER_S:g} s.", "messages")
                pieces.append(piece)
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"The chat template refuses these messages: {_shown(error)}", "messages") from error
        except (TypeError, ValueError, AttributeError, KeyError, ArithmeticError, RecursionError, MemoryError) as error:
            # A template is a program over the caller's data: what it trips over is in the data.
            raise InvalidRequest(
                f"The chat template cannot render these messages: {_shown(error)}", "messages"
            ) from error
        return "".join(pieces)


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of one request; InvalidRequest for a name that is not in the list or a wrong type."""
    for name, value in options.items():
        param = f"chat_template_kwargs.{name[:64]}"
        if name not in ALLOWED_OPTIONS:
            raise InvalidRequest(
                f"'{param}' is not supported; supported are {', '.join(sorted(ALLOWED_OPTIONS))}.", param
            )
        kinds = ALLOWED_OPTIONS[name]
        if not isinstance(value, kinds):
            raise InvalidRequest(f"'{param}' must be {kinds[0].__name__}, not {type(value).__name__}.", param)
        if isinstance(value, str) and len(value) > LONGEST_OPTION_CHARS:
            raise InvalidRequest(f"'{param}' is longer than {LONGEST_OPTION_CHARS} characters.", param)
    return dict(options)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _shown(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:500]
