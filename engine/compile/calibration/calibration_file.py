"""The file of `--calibration`: plain text, or JSON lines of texts and conversations that the template renders."""

import asyncio
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from engine.bundle.manifest import TextSpec
from engine.errors import CompileError, InvalidRequest
from engine.files import brief, one_line, open_regular, reading
from engine.text.prompt import normalise_message
from engine.text.rendering import Rendered, RenderRequest, read_template
from engine.text.template_pool import render_all
from engine.text.tokenizer import check_unicode

TOGETHER = 64  # a renderer starts once for so many
MOST_CHARS = 16 << 20
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class CalibrationChat:
    """One conversation. messages, tools: as templates take them. plain: what stands for it without a template."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    plain: str = ""


def question(asked: str, answered: str) -> CalibrationChat:
    messages = ({"role": "user", "content": asked}, {"role": "assistant", "content": answered})
    return CalibrationChat(messages, plain=f"{asked}\n{answered}")


def rendered(template: str, text: TextSpec, chats: Sequence[CalibrationChat]) -> list[Rendered]:
    """In order; a conversation that takes the template too long has an error and is the last. BundleError. template:
    its source."""
    names = {"bos_token": text.bos_token or "", "eos_token": text.eos_token or ""}
    requests = [RenderRequest(chat.messages, chat.tools, names, MOST_CHARS) for chat in chats]
    return asyncio.run(render_all(template, requests)) if requests else []


def spoken(folder: Path, text: TextSpec, items: Iterable[str | CalibrationChat]) -> Iterator[str]:
    """Texts as they are, conversations through the template; as plain text where there is none or it refuses one.
    folder: of the template that `text` names. BundleError when it is none."""
    template = read_template(folder / text.chat_template) if text.chat_template else ""
    for group in grouped(items, TOGETHER):
        chats = [item for item in group if isinstance(item, CalibrationChat)]
        answers = rendered(template, text, chats) if template else []
        if any(answer.error for answer in answers):
            template = ""  # it would refuse the others too, or take its time for each
        said = iter([answer.text for answer in answers] if template else [chat.plain for chat in chats])
        yield from (item if isinstance(item, str) else next(said) for item in group)


def grouped(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Neighbours in lists of at most `size`."""
    left = iter(items)
    while group := list(islice(left, size)):
        yield group


FORMS = 'a string, {"text": ...} or {"messages": [...]}'


class LineRefused(ValueError):
    """A line that says neither; `str(error)` is the reason, with the field."""


def is_json_line(line: bytes) -> bool:
    """Whether plain text can be told from JSON lines by this first line: an object with a text or messages."""
    try:
        value = _parsed(line)
    except LineRefused:
        return False
    return isinstance(value, dict) and ("text" in value or "messages" in value)


def read_line(line: bytes) -> str | CalibrationChat:
    """A text or a conversation; fields of other names are for others. LineRefused."""
    value = _parsed(line)
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise LineRefused(f"it must be {FORMS}, not {brief(value)}")
    if "text" in value and "messages" in value:
        raise LineRefused("it has both 'text' and 'messages'")
    if "messages" in value:
        listed = value["messages"]
        if not isinstance(listed, list) or not listed:
            raise LineRefused(f"'messages' must be a list of at least one message, it is {brief(listed)}")
        messages = [_message(item, f"messages[{index}]") for index, item in enumerate(listed)]
        return CalibrationChat(messages, _tools(value.get("tools")))
    if not isinstance(text := value.get("text"), str):
        found = f"'text' is {brief(text)}" if "text" in value else f"its fields are {brief(sorted(value))}"
        raise LineRefused(f"it must be {FORMS}; {found}")
    return text


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.removeprefix(b"\xef\xbb\xbf").decode("utf-8"))
    except UnicodeDecodeError as error:
        raise LineRefused(f"it is not UTF-8 (byte {error.start} of the line)") from None
    except RecursionError:
        raise LineRefused("it is nested too deeply") from None
    except ValueError as error:
        raise LineRefused(f"it is not JSON: {one_line(error)}") from None


def _message(item: object, place: str) -> Mapping[str, Any]:
    if not isinstance(item, dict):
        raise LineRefused(f"'{place}' must be an object, it is {brief(item)}")
    if not isinstance(item.get("role"), str):
        raise LineRefused(f"'{place}.role' must be a string, it is {brief(item.get('role'))}")
    if item.get("tool_calls") is not None and not isinstance(item["tool_calls"], list):
        raise LineRefused(f"'{place}.tool_calls' must be a list, it is {brief(item['tool_calls'])}")
    if item.get("content") is None and not item.get("tool_calls"):
        raise LineRefused(f"'{place}.content' is missing")
    try:
        return normalise_message(item, place)
    except InvalidRequest as error:
        raise LineRefused(str(error)) from None


def _tools(value: object) -> list[Mapping[str, Any]] | None:
    if value is not None and not (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
        raise LineRefused(f"'tools' must be a list of objects, it is {brief(value)}")
    return value or None


JSON_LINES = ".jsonl"
MIB = 1 << 20
MOST_BYTES = 1024 * MIB
MOST_LINE_BYTES = 4 * MIB
PIECE_CHARS = 16 << 10  # of plain text


@dataclass(frozen=True, slots=True)
class CalibrationFile:
    """A file of texts. is_lines: JSON lines. folder: of the template that `text` names. Iterating reads it anew."""

    path: Path
    is_lines: bool
    folder: Path
    text: TextSpec

    @classmethod
    def opened(cls, path: Path, folder: Path, text: TextSpec) -> "CalibrationFile":
        """A file that can be read, is not too large and says something. CompileError. Its suffix tells JSON lines, or
        else its first line."""
        with reading(f"--calibration {path}", CompileError), open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            first = next(filter(bytes.strip, _lines(stream)), b"") if size <= MOST_BYTES else b""
        if size > MOST_BYTES:
            raise CompileError(f"--calibration {path} has {size / MIB:.0f} MiB, {MOST_BYTES // MIB} MiB is the most")
        if not first:
            raise CompileError(f"--calibration {path} is empty")
        return cls(path, path.suffix.lower() == JSON_LINES or is_json_line(first), folder, text)

    def __iter__(self) -> Iterator[str]:
        """Documents that are not empty. CompileError naming the line that cannot be used."""
        has_any = False
        with reading(f"--calibration {self.path}", CompileError), open_regular(self.path) as stream:
            for document in self._spoken(stream) if self.is_lines else self._pieces(stream):
                if document.strip():
                    has_any = True
                    yield document
        if not has_any:
            raise CompileError(f"--calibration {self.path} has no text")

    def _pieces(self, stream: BufferedReader) -> Iterator[str]:
        """Plain text in pieces that end with a paragraph, or with a line at least, where one ends."""
        kept = ""
        with TextIOWrapper(stream, encoding="utf-8-sig") as reader:
            while block := self._read(reader):
                kept += block
                end = next((found + len(mark) for mark in ("\n\n", "\n") if (found := kept.rfind(mark)) > 0), len(kept))
                yield kept[:end]
                kept = kept[end:]
        yield kept

    def _read(self, reader: TextIOWrapper) -> str:
        try:
            return reader.read(PIECE_CHARS)
        except UnicodeDecodeError:
            raise CompileError(f"--calibration {self.path} is not UTF-8") from None

    def _spoken(self, stream: BufferedReader) -> Iterator[str]:
        template = read_template(self.folder / self.text.chat_template) if self.text.chat_template else ""
        for group in grouped(self._items(stream), TOGETHER):
            chats = [(number, item) for number, item in group if isinstance(item, CalibrationChat)]
            if chats and not template:
                raise self._refused(chats[0][0], "'messages' needs a chat template, and the model has none")
            answers = rendered(template, self.text, [chat for _, chat in chats])
            for (number, _), answer in zip(chats, answers, strict=False):
                if answer.error:
                    raise self._refused(number, answer.error)
            said = iter(answers)
            for number, item in group:
                text = item if isinstance(item, str) else next(said).text
                try:
                    check_unicode(text)
                except InvalidRequest as error:
                    raise self._refused(number, str(error)) from None
                yield text

    def _items(self, stream: BufferedReader) -> Iterator[tuple[int, str | CalibrationChat]]:
        """What each line says, with its number; empty lines say nothing."""
        for number, line in enumerate(_lines(stream), 1):
            if len(line) > MOST_LINE_BYTES:
                raise self._refused(number, f"it has more than {MOST_LINE_BYTES // MIB} MiB")
            if not line.strip():
                continue
            try:
                yield number, read_line(line)
            except LineRefused as error:
                raise self._refused(number, str(error)) from None

    def _refused(self, number: int, reason: str) -> CompileError:
        return CompileError(f"--calibration {self.path}, line {number}: {reason}")


def _lines(stream: BufferedReader) -> Iterator[bytes]:
    """Lines; of one that is too long, its beginning first."""
    while line := stream.readline(MOST_LINE_BYTES + 1):
        yield line
