"""`hexserve chat`: talk to a model in the terminal, or line by line through a pipe.

Answers go to stdout, everything else to stderr, so that a script reads only what the model said.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from server.commands.bench.own_server import ServerFailed, running_server
from server.commands.bench.target import Unreachable
from server.commands.chat.connection import AnswerFailed, Connection, Timing

DEFAULT_URL = "http://127.0.0.1:8000"
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
                self.obey(said)
            elif said:
                self._answer(said)
        return int(self._has_failed and not is_person)

    def _answer(self, question: str) -> None:
        timing = Timing(time.perf_counter())
        pieces: list[str] = []
        try:
            asked = self._conversation.messages(question)
            for piece in self._connection.stream(asked, self._conversation.fields, timing):
                pieces.append(piece.text)
                self._show(piece.reasoning, "dim")
                self._show(piece.text)
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

    def obey(self, line: str) -> None:
        """Carry out one command, or say what is wrong with it."""
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

    def _show(self, text: str, style: str = "") -> None:
        """Model output may hold anything: control characters would steer the terminal."""
        plain = text.translate(SHOWN)
        if self._answers.is_terminal:
            self._answers.out(plain, end="", style=style or None, highlight=False)
        else:
            self._answers.file.write(plain)  # rich would replace tabs
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
