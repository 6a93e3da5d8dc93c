"""Text that every machine has: the documentation, docstrings and source of Python's standard library (PSF licence).

The same Python minor version gives the same text. What an installation has left out is missing: some come without
source, and a packed one has compiled files alone.
"""

import ast
import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from textwrap import dedent

from engine.compile.texts.chats import CalibrationChat, question

MODULES = (
    *("argparse", "ast", "asyncio.tasks", "base64", "bdb", "bisect", "calendar", "cmd", "collections", "configparser"),
    *("contextlib", "copy", "csv", "ctypes", "dataclasses", "decimal", "difflib", "dis", "doctest", "email.message"),
    *("enum", "filecmp", "fnmatch", "fractions", "functools", "gettext", "glob", "gzip", "heapq", "html.parser"),
    *("http.client", "http.cookiejar", "imaplib", "inspect", "ipaddress", "json.decoder", "locale", "logging"),
    *("mailbox", "mimetypes", "multiprocessing.pool", "numbers", "optparse", "pathlib", "pdb", "pickle"),
    *("pickletools", "platform", "plistlib", "poplib", "pprint", "profile", "queue", "random", "reprlib", "sched"),
    *("secrets", "shelve", "shlex", "shutil", "smtplib", "socket", "socketserver", "statistics", "string"),
    *("subprocess", "tarfile", "tempfile", "textwrap", "threading", "timeit", "tokenize", "trace", "traceback"),
    *("turtle", "types", "typing", "unittest.case", "unittest.mock", "urllib.parse", "urllib.request", "uuid"),
    *("warnings", "wave", "weakref", "xml.dom.minidom", "zipfile", "_pydecimal"),
)
TOPICS = "pydoc_data.topics"  # the language reference, as help() shows it
SEED = "calibration"
LEAST_CHARS, MOST_CHARS = 300, 3000  # of one piece of text
VISIT = 4  # pieces of a module before the next one: each has to be parsed
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def standard_library() -> Iterator[str | CalibrationChat]:
    """Prose, questions about functions with their docstrings as answers, and code, in turn; a few thousand pieces."""
    rng = Random(SEED)
    modules = [*MODULES]
    rng.shuffle(modules)
    sources = [_of_module(name) for name in modules]
    topics = _topics(rng)
    while sources:
        left = []
        for source in sources:
            pieces = list(islice(source, VISIT))
            yield from islice(topics, VISIT // 2)
            yield from pieces
            if len(pieces) == VISIT:
                left.append(source)
        sources = left
    yield from topics


def _topics(rng: Random) -> Iterator[str]:
    """Pages of the language reference, cut between paragraphs."""
    try:
        pages: dict[str, str] = importlib.import_module(TOPICS).topics
    except (ImportError, AttributeError):
        return
    pieces = [piece for name in sorted(pages) for piece in _cut(pages[name])]
    rng.shuffle(pieces)
    yield from pieces


def _cut(page: str) -> list[str]:
    pieces = [""]
    for paragraph in page.split("\n\n"):
        if len(pieces[-1]) + len(paragraph) > MOST_CHARS:
            pieces.append("")
        pieces[-1] += f"{paragraph}\n\n"
    return [piece for piece in pieces if LEAST_CHARS <= len(piece) <= 2 * MOST_CHARS]


def _of_module(name: str) -> Iterator[str | CalibrationChat]:
    """A docstring as an answer and a piece of code, in turn, until one of them runs out. Nothing is imported."""
    source = _source(name)
    definitions = list(_definitions(ast.parse(source).body, name)) if source else []
    lines = source.splitlines()
    said = [question(f"What does {place} do in Python?", text) for place, text in map(_said, definitions) if text]
    code = [text for text in (_code(node, lines) for _, node in definitions) if text]
    rng = Random(f"{SEED} {name}")
    rng.shuffle(said)
    rng.shuffle(code)
    for chat, text in zip(said, code, strict=False):
        yield chat
        yield text


def _source(name: str) -> str:
    """The text of a module, '' where the installation has none, or none that this user may read."""
    try:
        spec = importlib.util.find_spec(name)
        get_source = getattr(spec.loader, "get_source", None) if spec else None
        return (get_source(name) or "") if get_source else ""
    except (ImportError, OSError):  # importlib raises either for a file that is there and cannot be read
        return ""


def _definitions(body: Sequence[ast.stmt], place: str) -> Iterator[tuple[str, Definition]]:
    for node in body:
        if isinstance(node, Definition):
            yield f"{place}.{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node.body, f"{place}.{node.name}")


def _said(definition: tuple[str, Definition]) -> tuple[str, str]:
    place, node = definition
    text = ast.get_docstring(node) or ""
    return place, text if LEAST_CHARS <= len(text) <= MOST_CHARS else ""


def _code(node: Definition, lines: Sequence[str]) -> str:
    text = dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])) + "\n"
    return text if LEAST_CHARS <= len(text) <= MOST_CHARS else ""
