"""`hexserve chat`: talk to a model in the terminal, or line by line through a pipe. Answers go to stdout, everything
else to stderr, so that a script reads only what the model said."""

import asyncio
import contextlib
import io
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.console import Console
from rich.text import Text

from server.commands import http_client
from server.commands.exit_codes import FAILED, refuse
from server.commands.http_client import AnswerFailed, AnswerRefused, ServerClient
from server.commands.own_server import running_server

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
TIMEOUT = httpx.Timeout(600.0, connect=10.0)
START_ONE = "Start a server with 'hexserve serve demo', or chat with a model: 'hexserve run demo'"


@dataclass(slots=True)
class Conversation:
    """What has been said and how answers are made. `fields` are sent with every request."""

    system: str = ""
    fields: dict[str, float | int] = field(default_factory=dict)
    said: list[dict[str, str]] = field(default_factory=list)

    def messages(self, question: str = "") -> list[dict[str, str]]:
        start = [{"role": "system", "content": self.system}] if self.system else []
        return start + self.said + ([{"role": "user", "content": question}] if question else [])

    def add(self, question: str, answer: str) -> None:
        self.said += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def is_text(typed: str) -> bool:
    """False when some of the bytes it was read from are no characters (they are lone surrogates then)."""
    return not any("\ud800" <= character <= "\udfff" for character in typed)


@dataclass(slots=True)
class Timing:
    """Times of one answer, in seconds since it was asked for; None until known."""

    asked_at: float
    first_s: float | None = None
    last_s: float | None = None
    usage: http_client.StreamedUsage | None = None

    def arrived(self, now: float) -> None:
        self.last_s = now - self.asked_at
        self.first_s = self.last_s if self.first_s is None else self.first_s

    def line(self) -> str:
        """For people. Tokens per second count from the question on: small answers come in one piece, at no rate."""
        if self.first_s is None or self.last_s is None:
            return "no text"
        parts = [f"first token {self.first_s * 1000:.0f} ms"]
        if self.usage is not None:
            tokens = self.usage.completion
            parts.insert(0, f"{tokens} tokens in {self.last_s:.2f} s, {tokens / self.last_s:.1f} tokens/s")
            parts.append(f"prompt {self.usage.prompt} ({self.usage.cached} cached)")
        return " | ".join(parts)


class Terminal:
    def __init__(
        self, client: ServerClient, runner: asyncio.Runner, conversation: Conversation, answers: Console, notes: Console
    ) -> None:
        self._client = client
        self._runner = runner  # owns the loop of the client, and turns Ctrl-C into the end of one answer
        self._conversation, self._answers, self._notes = conversation, answers, notes
        self._thoughts = answers if answers.is_terminal else notes  # a script reads answers only
        self._has_failed = False

    def talk(self) -> int:
        """Until the input ends or /quit; the exit status, 1 when a question of a script was not answered."""
        is_person = sys.stdin.isatty()
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # bytes that are no text are ours to complain about
        if is_person:
            self._note(f"{self._client.model} at {self._client.address}. /help lists the commands.")
        for number, line in enumerate(_typed_lines() if is_person else sys.stdin, 1):
            said = line.strip()
            if said == "/quit":
                break
            if not is_text(said):
                self._complain(f"line {number} is not {sys.stdin.encoding}, so it was not sent")
            elif said.startswith("/"):
                self.obey(said)
            elif said:
                self._answer(said)
        return int(self._has_failed and not is_person)

    def _answer(self, question: str) -> None:
        timing = Timing(time.perf_counter())
        pieces: list[str] = []
        try:
            self._runner.run(self._show_answer(question, pieces, timing))
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            self._show("\n")
            self._note("stopped")
        except AnswerFailed as error:
            self._show("\n" if pieces else "")
            wait = error.retry_after if isinstance(error, AnswerRefused) else ""
            self._complain(str(error) + (f" Try again in {wait} s." if wait else ""))
            return
        else:
            self._show("\n")
        if pieces:
            self._conversation.add(question, "".join(pieces))
            self._note(timing.line())

    async def _show_answer(self, question: str, pieces: list[str], timing: Timing) -> None:
        asked, fields = self._conversation.messages(question), self._conversation.fields
        is_thinking = False
        async with contextlib.aclosing(self._client.stream(asked, fields)) as arrivals:
            async for piece, arrived_at in arrivals:
                if piece.error:
                    raise AnswerFailed(piece.error, 200)
                if piece.text or piece.reasoning:
                    timing.arrived(arrived_at)
                timing.usage = piece.usage or timing.usage
                pieces.append(piece.text)
                if is_thinking and piece.text:
                    self._show("\n", self._thoughts)
                is_thinking = bool(piece.reasoning) or (is_thinking and not piece.text)
                self._show(piece.reasoning, self._thoughts, "dim")
                self._show(piece.text)

    def obey(self, line: str) -> None:
        command, _, argument = line.partition(" ")
        argument = argument.strip()
        match command:
            case "/reset" | "/system":
                self._conversation.system = argument if command == "/system" else self._conversation.system
                self._conversation.said.clear()
                self._note("the conversation is forgotten")
            case "/temp":
                self._set_number("temperature", argument, 0, 2)
            case "/topp":
                self._set_number("top_p", argument, 0, 1)
            case "/max":
                self._set_number("max_tokens", argument, 1, math.inf)
            case "/save":
                self._save(argument)
            case "/help":
                self._note(HELP)
            case _:
                self._complain(f"{command} is no command; /help lists them")

    def _set_number(self, name: str, text: str, low: float, high: float) -> None:
        if not text:
            self._conversation.fields.pop(name, None)
            return self._note(f"{name}: the server's own")
        try:
            value = int(text) if name == "max_tokens" else float(text)
        except ValueError:
            return self._complain(f"{name} must be a number, not '{text}'")
        if not low <= value <= high:
            most = "" if high == math.inf else f" and at most {high:g}"
            return self._complain(f"{name} must be at least {low:g}{most}")
        self._conversation.fields[name] = value
        return self._note(f"{name}: {value:g}")

    def _save(self, name: str) -> None:
        if not name:
            return self._complain("/save needs a file name")
        document = {"model": self._client.model, "messages": self._conversation.messages()}
        try:
            path = Path(name).expanduser()
            path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        except (OSError, RuntimeError) as error:
            return self._complain(f"{name} cannot be written: {error}")
        return self._note(f"written to {path}")

    def _show(self, text: str, place: Console | None = None, style: str = "") -> None:
        """Model output may hold anything: control characters would steer the terminal."""
        plain, console = text.translate(SHOWN), place or self._answers
        if console.is_terminal:
            console.out(plain, end="", style=style or None, highlight=False)
        else:
            console.file.write(plain)  # rich would replace tabs
        console.file.flush()

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


def run_chat(conversation: Conversation, url: str, bundle: str, model: str, api_key: str) -> int:
    """Talk until the input ends; the exit code. With `bundle`, to a server of our own that is started on it."""
    notes = Console(stderr=True)
    try:
        with contextlib.ExitStack() as stack:
            if bundle:
                notes.print(f"Starting a server on {bundle} ...", markup=False, style="dim")
                url = stack.enter_context(running_server(bundle))
            runner = stack.enter_context(asyncio.Runner())
            client = ServerClient(url, api_key, model, TIMEOUT)
            stack.callback(lambda: runner.run(client.close()))
            runner.run(client.find_model())
            return Terminal(client, runner, conversation, Console(), notes).talk()
    except http_client.NothingAnswers as error:
        refuse(f"{error}. {START_ONE}", FAILED)
