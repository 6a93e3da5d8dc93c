"""Calibration text from Python's standard library: much of it, always the same, and nothing is executed for it."""

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from itertools import islice

import pytest

from engine.compile.calibration import documents as library
from engine.compile.calibration.calibration_file import CalibrationChat
from engine.compile.calibration.documents import LEAST_CHARS, MOST_CHARS, standard_library


def test_there_is_much_of_every_kind() -> None:
    pieces = list(standard_library())
    chats = [piece for piece in pieces if isinstance(piece, CalibrationChat)]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    code = [piece for piece in texts if piece.startswith(("def ", "class ", "async def "))]
    assert min(len(chats), len(code), len(texts) - len(code)) > 100
    sizes = [len(chat.messages[1]["content"]) for chat in chats] + [len(text) for text in texts]
    assert min(sizes) >= LEAST_CHARS
    assert max(sizes) <= 2 * MOST_CHARS
    assert sum(sizes) > 1_000_000  # some 250,000 tokens
    assert len({piece if isinstance(piece, str) else piece.plain for piece in pieces}) > 0.98 * len(pieces)
    assert [message["role"] for message in chats[0].messages] == ["user", "assistant"]


def test_the_same_text_in_every_process() -> None:
    program = (
        "import hashlib, itertools\n"
        "from engine.compile.calibration.documents import standard_library\n"
        "print(hashlib.sha256(repr(list(itertools.islice(standard_library(), 60))).encode()).hexdigest())"
    )
    found = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=seeded).stdout
        for seeded in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    }
    assert len(found) == 1


def test_no_module_is_imported_for_its_text() -> None:
    before = {name for name in library.MODULES if name in sys.modules}
    list(islice(standard_library(), 100))
    assert {name for name in library.MODULES if name in sys.modules} == before


def test_an_installation_without_some_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "TOPICS", "no_such_package.topics")
    monkeypatch.setattr(library, "MODULES", ("no_such_module", "no_such_package.module", "math", "textwrap"))
    pieces = list(standard_library())
    assert pieces
    assert all("textwrap" in piece.plain for piece in pieces if isinstance(piece, CalibrationChat))


def test_files_that_this_user_may_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "MODULES", library.MODULES[:8])
    whole = sum(len(document) for document in map(str, standard_library()))

    def refused(self: SourceFileLoader, name: str) -> str:
        raise PermissionError(name)

    monkeypatch.setattr(SourceFileLoader, "get_source", refused)
    assert sum(len(document) for document in map(str, standard_library())) < whole
