"""The process that renders one chat template: `python -m engine.text.renderer`. Each conversation is one frame.

An empty frame says that it is up. The first frame it reads has the template and is answered by an empty `Rendered`, or
by why the template cannot be compiled. What takes too long ends the process, what takes too much memory does not: a
template is a program, and Jinja's sandbox bounds neither its time nor its memory.

The environment gives templates what Hugging Face's `apply_chat_template` gives them: trim_blocks, lstrip_blocks,
loop controls, `raise_exception`, `strftime_now`, a `tojson` that keeps Unicode and HTML signs, and
`{% generation %}` blocks.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from engine.errors import BundleError, InvalidRequest
from engine.isolation.framing import Opened, ending_after, serve
from engine.text import rendering

LONGEST_RENDER_S = 5.0
# A template is a program over the caller's data: what it trips over is in the data.
TRIPPED_OVER = (TypeError, ValueError, AttributeError, KeyError, ArithmeticError, RecursionError, MemoryError)


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template. `clock` counts seconds; longest_s bounds a rendering where the template prints something."""

    def __init__(
        self, source: str, clock: Callable[[], float] = time.monotonic, longest_s: float = LONGEST_RENDER_S
    ) -> None:
        """BundleError when `source` is not a template."""
        try:
            environment = _environment()
            self._template = environment.from_string(source)
            read = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except (jinja2.TemplateError, SyntaxError, *TRIPPED_OVER) as error:  # SyntaxError: blocks nested too deeply
            raise BundleError(f"the chat template cannot be compiled: {_shown(error)}") from error
        self._reads_functions = "functions" in read and "tools" not in read
        self._clock = clock
        self._longest_s = longest_s

    @classmethod
    def load(cls, path: Path) -> "ChatTemplate":
        """Read and compile a template file; BundleError when it cannot be used."""
        return cls(rendering.read_template(path))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        max_chars: int,
    ) -> str:
        """Prompt text. `variables` are checked options and the special tokens' names. Raises InvalidRequest with the
        template's own message, or when it takes or says too much."""
        try:
            given = {**variables, "messages": messages, "tools": tools}
            if self._reads_functions:  # Firefunction's: tools as JSON text, and the time
                given |= {"functions": _tojson(tools or [], indent=2), "datetime": _strftime_now("%b %d %Y %H:%M:%S")}
            return self._bounded(self._template.generate(given), max_chars)
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"The chat template refuses these messages: {_shown(error)}", "messages") from error
        except MemoryError:
            raise InvalidRequest(rendering.TOO_MUCH_MEMORY, "messages") from None
        except TRIPPED_OVER as error:
            raise InvalidRequest(
                f"The chat template cannot render these messages: {_shown(error)}", "messages"
            ) from error

    def answer(self, request: rendering.RenderRequest) -> rendering.Rendered:
        try:
            return rendering.Rendered(
                self.render(request.messages, request.tools, request.variables, request.max_chars)
            )
        except InvalidRequest as error:
            return rendering.Rendered(error=str(error), is_too_long=isinstance(error, rendering.RenderTooLong))

    def _bounded(self, printed: Iterable[str], max_chars: int) -> str:
        deadline = self._clock() + self._longest_s
        pieces: list[str] = []
        chars = 0
        for piece in printed:
            chars += len(piece)
            if chars > max_chars:
                raise rendering.RenderTooLong(f"The rendered prompt is longer than {max_chars} characters.", "messages")
            if self._clock() > deadline:
                raise InvalidRequest(rendering.too_slow(self._longest_s), "messages")
            pieces.append(piece)
        return "".join(pieces)


def _environment() -> jinja2.sandbox.SandboxedEnvironment:
    environment = jinja2.sandbox.SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
    )


def _listed(value: Any) -> list[Any]:
    """What filters such as `map` give is a list in JSON."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _shown(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:500]


def opened(body: bytes) -> Opened:
    opening = rendering.decode(body, rendering.TemplateOpening)
    try:
        with ending_after(opening.compile_s):
            template = ChatTemplate(opening.source, longest_s=opening.longest_s)
    except BundleError as error:
        return Opened(rendering.encode(rendering.Rendered(error=str(error))))
    return Opened(rendering.encode(rendering.Rendered()), opening.longest_s, partial(rendered, template))


def rendered(template: ChatTemplate, body: bytes) -> bytes:
    """The answer to one frame; reading and writing it count as the template's work."""
    try:
        return rendering.encode(template.answer(rendering.decode(body, rendering.RenderRequest)))
    except MemoryError:
        return rendering.encode(rendering.Rendered(error=rendering.TOO_MUCH_MEMORY))
    except (ValueError, RecursionError) as error:  # a number that Python does not read
        return rendering.encode(rendering.Rendered(error=f"The chat template cannot be given these messages: {error}"))


if __name__ == "__main__":
    try:
        sys.exit(serve(rendering.MEMORY_BYTES, opened))
    except KeyboardInterrupt:
        sys.exit(1)
