"""The file of --calibration: what it may be, and the sentence when it is not."""

import json
import os
from itertools import islice
from pathlib import Path

import pytest

from engine.bundle.manifest import TextSpec
from engine.compile.calibration import calibration_file
from engine.compile.calibration.calibration_file import PIECE_CHARS, CalibrationFile
from engine.errors import CompileError

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'critic' %}{{ raise_exception('no critics') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}{{ tools | length if tools else '' }}"
)
PLAIN = TextSpec("tokenizer.json", None, ())
CHATS = TextSpec("tokenizer.json", "t", (), bos_token="<s>", eos_token="</s>")
USER = {"role": "user", "content": "Hi"}


def read(file: Path, text: TextSpec = CHATS) -> list[str]:
    (file.parent / "t").write_text(TEMPLATE, encoding="utf-8")
    return list(CalibrationFile.opened(file, file.parent, text))


def written(folder: Path, *lines: object, name: str = "texts.jsonl") -> Path:
    file = folder / name
    said = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    file.write_text("\n".join(said) + "\n", encoding="utf-8")
    return file


def refusal(file: Path, text: TextSpec = CHATS) -> str:
    with pytest.raises(CompileError) as refused:
        read(file, text)
    return str(refused.value)


def test_texts_and_conversations_in_their_order(tmp_path: Path) -> None:
    chats = [{"messages": [{"role": "user", "content": f"{number}?"}]} for number in range(100)]
    lines = [json.dumps("first"), "", {"text": "second <|user|>"}, *chats, {"messages": [USER], "tools": [{}, {}]}]
    expected = ["first", "second <|user|>", *(f"<s><|user|>{number}?</s>" for number in range(100))]
    assert read(written(tmp_path, *lines)) == [*expected, "<s><|user|>Hi</s>2"]


def test_the_suffix_or_the_first_line_tells_json_lines(tmp_path: Path) -> None:
    assert read(written(tmp_path, {"text": "a"}, name="texts.txt"), PLAIN) == ["a"]
    assert read(written(tmp_path, '"Yes."', '"No."', name="talk.txt"), PLAIN) == ['"Yes."\n"No."\n']
    assert read(written(tmp_path, '"Yes."', '"No."', name="talk.JSONL"), PLAIN) == ["Yes.", "No."]


def test_plain_text_comes_in_pieces_that_end_with_paragraphs(tmp_path: Path) -> None:
    file = tmp_path / "text"
    paragraphs = [f"Paragraph {number}. " + "Grüße, " * 50 + "\n\n" for number in range(200)]
    file.write_bytes(b"\xef\xbb\xbf" + "".join(paragraphs).replace("\n", "\r\n").encode())
    pieces = read(file, PLAIN)
    assert "".join(pieces) == "".join(paragraphs)
    assert len(pieces) > 3
    assert all(piece.startswith("Paragraph") and len(piece) <= PIECE_CHARS + 500 for piece in pieces)
    file.write_text("word " * PIECE_CHARS)  # no line ends
    assert "".join(read(file, PLAIN)) == "word " * PIECE_CHARS


def test_a_bad_line_behind_what_is_needed_is_never_read(tmp_path: Path) -> None:
    many = [{"text": str(number)} for number in range(100)]
    file = written(tmp_path, *many, "oops")
    documents = CalibrationFile.opened(file, tmp_path, PLAIN)
    assert list(islice(documents, 10)) == [str(number) for number in range(10)]
    assert refusal(file) == f"--calibration {file}, line 101: it is not JSON: Expecting value: line 1 column 1 (char 0)"


def test_conversations_that_cannot_be_rendered(tmp_path: Path) -> None:
    file = written(tmp_path, {"text": "a"}, {"messages": [USER]})
    assert refusal(file, PLAIN) == (
        f"--calibration {file}, line 2: 'messages' needs a chat template, and the model has none"
    )
    file = written(tmp_path, {"messages": [USER]}, "", {"messages": [{"role": "critic", "content": "no"}]})
    assert refusal(file) == f"--calibration {file}, line 3: The chat template refuses these messages: no critics"
    file = written(tmp_path, {"messages": [{**USER, "content": "\ud800"}]})
    assert "line 1: The text is not valid Unicode" in refusal(file)


def test_files_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    latin = tmp_path / "latin"
    latin.write_bytes(b"caf\xe9")
    assert refusal(latin) == f"--calibration {latin} is not UTF-8"
    blank = written(tmp_path, "  ", name="blank")
    assert refusal(blank) == f"--calibration {blank} is empty"
    nothing = written(tmp_path, {"text": ""}, '" "')
    assert refusal(nothing) == f"--calibration {nothing} has no text"
    assert refusal(tmp_path) == f"--calibration {tmp_path} cannot be read: it is a folder, not a regular file"
    monkeypatch.setattr(calibration_file, "MOST_LINE_BYTES", 100)
    long = written(tmp_path, {"text": "a"}, {"text": "b" * 200})
    assert refusal(long) == f"--calibration {long}, line 2: it has more than 0 MiB"
    huge = tmp_path / "huge"
    with huge.open("wb") as stream:
        os.ftruncate(stream.fileno(), 3000 << 20)  # a hole: nothing is written
    assert refusal(huge) == f"--calibration {huge} has 3000 MiB, 1024 MiB is the most"
