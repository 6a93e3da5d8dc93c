"""The file of `--calibration`: plain text, or JSON lines of texts and conversations. Read as far as it is needed."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from pathlib import Path

from engine.bundle.manifest import TextSpec
from engine.compile.texts.chats import TOGETHER, CalibrationChat, grouped, rendered
from engine.compile.texts.json_lines import LineRefused, is_json_line, read_line
from engine.errors import CompileError, InvalidRequest
from engine.files.opening import open_regular, shown
from engine.text.rendering import read_template
from engine.text.tokenizer import check_unicode

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
        """A file that can be read, is not too large and says something. CompileError.

        Its suffix tells JSON lines, or else its first line.
        """
        try:
            with open_regular(path) as stream:
                size = os.fstat(stream.fileno()).st_size
                first = next(filter(bytes.strip, _lines(stream)), b"") if size <= MOST_BYTES else b""
        except OSError as error:
            raise CompileError(f"--calibration {path} cannot be read: {shown(error)}") from error
        if size > MOST_BYTES:
            raise CompileError(f"--calibration {path} has {size / MIB:.0f} MiB, {MOST_BYTES // MIB} MiB is the most")
        if not first:
            raise CompileError(f"--calibration {path} is empty")
        return cls(path, path.suffix.lower() == JSON_LINES or is_json_line(first), folder, text)

    def __iter__(self) -> Iterator[str]:
        """Documents that are not empty. CompileError naming the line that cannot be used."""
        has_any = False
        try:
            with open_regular(self.path) as stream:
                for document in self._spoken(stream) if self.is_lines else self._pieces(stream):
                    if document.strip():
                        has_any = True
                        yield document
        except OSError as error:
            raise CompileError(f"--calibration {self.path} cannot be read: {shown(error)}") from error
        if not has_any:
            raise CompileError(f"--calibration {self.path} has no text")

    def _pieces(self, stream: BufferedReader) -> Iterator[str]:
        """Plain text in pieces that end with a paragraph, or with a line at least, where one ends."""
        kept = ""
        with TextIOWrapper(stream, encoding="utf-8-sig") as reader:
            while block := self._block(reader):
                kept += block
                end = next((found + len(mark) for mark in ("\n\n", "\n") if (found := kept.rfind(mark)) > 0), len(kept))
                yield kept[:end]
                kept = kept[end:]
        yield kept

    def _block(self, reader: TextIOWrapper) -> str:
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
                yield self._unicode(number, item if isinstance(item, str) else next(said).text)

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

    def _unicode(self, number: int, text: str) -> str:
        try:
            check_unicode(text)
        except InvalidRequest as error:
            raise self._refused(number, str(error)) from None
        return text

    def _refused(self, number: int, reason: str) -> CompileError:
        return CompileError(f"--calibration {self.path}, line {number}: {reason}")


def _lines(stream: BufferedReader) -> Iterator[bytes]:
    """Lines; of one that is too long, its beginning first."""
    while line := stream.readline(MOST_LINE_BYTES + 1):
        yield line
