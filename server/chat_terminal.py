"""`hexserve chat`: talk to a model in the terminal, or line by line through a pipe.

Answers go to stdout, everything else to stderr, so that a script reads only what the model said.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.text import Text

from server.bench.event_stream import DONE, BrokenStream, EventDecoder, Usage, error_message, read_piece
from server.bench.own_server import ServerFailed, running_server
from server.bench.target import Unreachable, headers_for, may_use_proxy, root_address

DEFAULT_URL = "http://127.0.0.1:8000"
READ_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 10.0
PROMPT = "> "
UNPRINTABLE = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)])
SHOWN = {code: None for code in UNPRINTABLE if chr(code) not in "\n\t"}

HELP = """\
/reset          forget the conversation, keep the settings
/system TEXT    set the system message and forget the conversation; without TEXT remove it
/temp NUMBER    temperature, 0 to 2; without NUMBER the server's own
/topp NUMBER    top-p, 0 to 1; without NUMBER the server's own
/max NUMBER     most tokens of an answer; without NUMBER the server's own
/save FILE      write the conversation as JSON
/help           this list
/quit           leave, as does Ctrl-D; Ctrl-C stops an answer"""


class AnswerFailed(Exception):
    """The server refused or broke off; the message is its own."""


@dataclass(slots=True)
class Conversation:
    """What has been said and how answers are made. `fields` are sent with every request."""

    system: str = ""
    fields: dict[str, float | int] = field(default_factory=dict)
    said: list[dict[str, str]] = field(default_factory=list)

    def messages(self, question: str = "") -> list[dict[str, str]]:
        """Everything so far, and `question` if there is one."""
        start = [{"role": "system", "content": self.system}] if self.system else []
        return start + self.said + ([{"role": "user", "content": question}] if question else [])

    def add(self, question: str, answer: str) -> None:
        """Keep one exchange."""
        self.said += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@dataclass(slots=True)
class Timing:
    """Times of one answer, in seconds since it was asked for; None until known."""

    asked_at: float
    first_s: float | None = None
    last_s: float | None = None
    usage: Usage | None = None

    def arrived(self, now: float) -> None:
        """Text came at `now`."""
        self.last_s = now - self.asked_at
        self.first_s = self.last_s if self.first_s is None else self.first_s

    def line(self) -> str:
        """For people: tokens, tokens per second after the first, and the time to the first."""
        if self.first_s is None or self.last_s is None:
            return "no text"
        parts = []
        if self.usage is not None:
            generating_s = self.last_s - self.first_s
            parts.append(f"{self.usage.completion} tokens")
            if self.usage.completion > 1 and generating_s > 0:
                parts.append(f"{(self.usage.completion - 1) / generating_s:.1f} tokens/s")
            parts.append(f"prompt {self.usage.prompt} ({self.usage.cached} cached)")
        parts.insert(min(2, len(parts)), f"first token {self.first_s * 1000:.0f} ms")
        return " | ".join(parts)


def chat(
    url: Annotated[str, typer.Option(help=f"A running server; {DEFAULT_URL} if neither is given.")] = "",
    bundle: Annotated[str, typer.Option(help="Start a server on this instead: 'demo' or a folder.")] = "",
    system: Annotated[str, typer.Option(help="System message.")] = "",
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="The server's own if left out.")] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1, help="The server's own if left out.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
    model: Annotated[str, typer.Option(help="Model name; the first one listed if left out.")] = "",
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Bearer key.")] = "",
) -> None:
    """Chat in the terminal with a running server, or with a bundle."""
    notes = Console(stderr=True)
    if url and bundle:
        raise typer.BadParameter("--url and --bundle exclude each other")
    given = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    conversation = Conversation(system, {name: value for name, value in given.items() if value is not None})
    try:
        with contextlib.ExitStack() as stack:
            if bundle:
                notes.print(f"Starting a server on {bundle} ...", markup=False, style="dim")
                url = stack.enter_context(running_server(bundle))
            connection = stack.enter_context(Connection(url or DEFAULT_URL, model, api_key))
            status = Terminal(connection, conversation, Console(), notes).talk()
    except (Unreachable, ServerFailed) as error:
        notes.print(f"chat: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    if status:
        raise typer.Exit(status)


class Connection:
    """One server and the model asked on it. Raises Unreachable when nothing usable answers."""

    def __init__(self, url: str, model: str, api_key: str) -> None:
        self.address = root_address(url)
        self._client = httpx.Client(
            base_url=self.address,
            headers=headers_for(api_key),
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=may_use_proxy(self.address),
        )
        self.model = model or self._first_model()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _first_model(self) -> str:
        try:
            response = self._client.get("v1/models")
            listed = response.json()
            if response.status_code != 200:
                raise Unreachable(f"{self.address} answers {response.status_code}: {error_message(listed)}")
            return str(listed["data"][0]["id"])
        except httpx.TransportError as error:
            raise Unreachable(
                f"nothing answers at {self.address} ({error}). Start a server with 'hexserve serve demo', "
                "or chat with a bundle: 'hexserve chat --bundle demo'"
            ) from error
        except (ValueError, LookupError, TypeError) as error:
            raise Unreachable(f"{self.address}/v1/models is no list of models; name one with --model") from error

    def stream(self, messages: list[dict[str, str]], fields: Mapping[str, float], timing: Timing) -> Iterator[str]:
        """The text of an answer as it comes, noted in `timing`. Raises AnswerFailed."""
        body: dict[str, Any] = {"model": self.model, "messages": messages, "stream": True, **fields}
        body["stream_options"] = {"include_usage": True}
        try:
            with self._client.stream("POST", "v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    raise AnswerFailed(_refusal(response))
                decoder = EventDecoder()
                for received in response.iter_bytes():
                    for payload in decoder.feed(received):
                        if payload != DONE:
                            yield self._read(payload, timing)
        except httpx.HTTPError as error:
            raise AnswerFailed(f"the connection broke: {error or type(error).__name__}") from error
        except BrokenStream as error:
            raise AnswerFailed(f"the stream is broken: {error}") from error

    def _read(self, payload: str, timing: Timing) -> str:
        piece = read_piece(payload)
        if piece.error:
            raise AnswerFailed(piece.error)
        if piece.has_output:
            timing.arrived(time.perf_counter())
        timing.usage = piece.usage or timing.usage
        return piece.reasoning + piece.text


def _refusal(response: httpx.Response) -> str:
    response.read()
    try:
        message = error_message(response.json())
    except ValueError:
        message = response.text[:200]
    wait = response.headers.get("retry-after", "")
    return f"{response.status_code}: {message}" + (f" Try again in {wait} s." if wait else "")


class Terminal:
    """Reads questions and commands, shows answers."""

    def __init__(self, connection: Connection, conversation: Conversation, answers: Console, notes: Console) -> None:
        self._connection = connection
        self._conversation = conversation
        self._answers = answers
        self._notes = notes
        self._has_failed = False

    def talk(self) -> int:
        """Until the input ends or /quit; the exit status, 1 when a question of a script was not answered."""
        is_person = sys.stdin.isatty()
        if is_person:
            self._note(f"{self._connection.model} at {self._connection.address}. /help lists the commands.")
        for line in _typed_lines() if is_person else sys.stdin:
            said = line.strip()
            if said == "/quit":
                break
            if said.startswith("/"):
                self._obey(said)
            elif said:
                self._answer(said)
        return int(self._has_failed and not is_person)

    def _answer(self, question: str) -> None:
        timing = Timing(time.perf_counter())
        pieces: list[str] = []
        try:
            asked = self._conversation.messages(question)
            for text in self._connection.stream(asked, self._conversation.fields, timing):
                pieces.append(text)
                self._show(text)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            self._show("\n")
            self._note("stopped")
        except AnswerFailed as error:
            self._has_failed = True
            self._show("\n" if pieces else "")
            self._complain(str(error))
            return
        else:
            self._show("\n")
        if pieces:
            self._conversation.add(question, "".join(pieces))
            self._note(timing.line())

    def _obey(self, line: str) -> None:
        command, _, argument = line.partition(" ")
        argument = argument.strip()
        commands: dict[str, Callable[[str], None]] = {
            "/reset": self._reset,
            "/system": self._set_system,
            "/temp": lambda text: self._set_number("temperature", text, 0, 2),
            "/topp": lambda text: self._set_number("top_p", text, 0, 1),
            "/max": lambda text: self._set_number("max_tokens", text, 1, None),
            "/save": self._save,
            "/help": lambda _: self._note(HELP),
        }
        if command not in commands:
            self._complain(f"{command} is no command; /help lists them")
            return
        commands[command](argument)

    def _reset(self, _: str = "") -> None:
        self._conversation.said.clear()
        self._note("the conversation is forgotten")

    def _set_system(self, text: str) -> None:
        self._conversation.system = text
        self._reset()

    def _set_number(self, name: str, text: str, low: float, high: float | None) -> None:
        if not text:
            self._conversation.fields.pop(name, None)
            self._note(f"{name}: the server's own")
            return
        try:
            value = int(text) if name == "max_tokens" else float(text)
        except ValueError:
            self._complain(f"{name} must be a number, not '{text}'")
            return
        if not low <= value <= (value if high is None else high):
            self._complain(f"{name} must be at least {low:g}" + ("" if high is None else f" and at most {high:g}"))
            return
        self._conversation.fields[name] = value
        self._note(f"{name}: {value:g}")

    def _save(self, name: str) -> None:
        if not name:
            self._complain("/save needs a file name")
            return
        document = {"model": self._connection.model, "messages": self._conversation.messages()}
        try:
            path = Path(name).expanduser()
            path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        except (OSError, RuntimeError) as error:
            self._complain(f"{name} cannot be written: {error}")
            return
        self._note(f"written to {path}")

    def _show(self, text: str) -> None:
        """Model output may hold anything: control characters would steer the terminal."""
        self._answers.print(Text(text.translate(SHOWN)), end="", soft_wrap=True)
        self._answers.file.flush()

    def _note(self, text: str) -> None:
        self._notes.print(Text(text, style="dim"), soft_wrap=True)

    def _complain(self, text: str) -> None:
        self._has_failed = True
        self._notes.print(Text(text.translate(SHOWN), style="red"), soft_wrap=True)


def _typed_lines() -> Iterator[str]:
    """Lines of a person; Ctrl-C drops the line, Ctrl-D (Ctrl-Z on Windows) ends. readline gives history and editing."""
    with contextlib.suppress(ImportError):
        __import__("readline")
    while True:
        try:
            yield input(PROMPT)
        except KeyboardInterrupt:
            print(file=sys.stderr)
        except EOFError:
            print(file=sys.stderr)
            return
