"""Which texts a compilation calibrates on, and how they become sequences of tokens of one length.

The same Python minor version gives the same text. What an installation has left out is missing: some come without
source, and a packed one has compiled files alone.
"""

import ast
import importlib
import importlib.util
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, cycle, islice
from pathlib import Path
from random import Random
from textwrap import dedent

from engine.bundle.manifest import TextSpec
from engine.compile.calibration.calibration_file import CalibrationChat, CalibrationFile, question, spoken
from engine.compile.sources.text_files import load_tokenizer
from engine.demo.location import CALIBRATION, is_shipped, shipped_texts

# A question with its answer, or a document, on each line: a few of many kinds and languages.
SAMPLES = Path(__file__).resolve().parents[1] / "texts" / "samples.jsonl"
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
    rng, modules = Random(SEED), [*MODULES]
    rng.shuffle(modules)
    sources, topics = [_of_module(name) for name in modules], _topics(rng)
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
    lines, said, code = source.splitlines(), [], []
    for place, node in definitions:
        if LEAST_CHARS <= len(text := ast.get_docstring(node) or "") <= MOST_CHARS:
            said.append(question(f"What does {place} do in Python?", text))
        if LEAST_CHARS <= len(text := dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])) + "\n") <= MOST_CHARS:
            code.append(text)
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


def calibration_documents(source: Path, file: Path | None, folder: Path, text: TextSpec) -> Iterable[str]:
    """Whole documents in the form the model will see them, made as they are read. source: the checkpoint. file: of
    `--calibration`. folder: of the template and tokenizer that `text` names. CompileError when the file cannot be used,
    now or when its bad line is reached; BundleError for a bad template."""
    if file is not None:
        return CalibrationFile.opened(file, folder, text)
    if is_shipped(source):
        return shipped_texts(CALIBRATION)  # what the shipped models were trained on
    # A few samples of many kinds, then as much English and code as is wanted.
    return spoken(folder, text, chain(samples(), standard_library()))


def samples() -> Iterator[str | CalibrationChat]:
    """What `SAMPLES` holds, questions first."""
    for item in map(json.loads, SAMPLES.read_text("utf-8").splitlines()):
        yield question(*item) if isinstance(item, list) else str(item)


def token_sequences(
    documents: Iterable[str], folder: Path, text: TextSpec, vocab: int, length: int, count: int
) -> list[list[int]]:
    """At most `count` sequences of exactly `length` tokens, each beginning where a document does.

    Documents are read until there are enough sequences. Where there are too few, what was left of long documents
    follows, and too little text for one sequence is repeated until it fills it. Special tokens that are written out
    count as such. A model's BOS or prefix begins every sequence and stands nowhere else. folder: of the tokenizer.
    """
    tokenizer = load_tokenizer(folder)
    bos = tokenizer.token_to_id(text.bos_token) if text.add_bos and text.bos_token else None
    start = list(text.prefix) or ([] if bos is None else [bos])
    found, rests, current, room = list[list[int]](), list[list[int]](), list(start), length - len(start)
    for document in documents:
        ids = [token for token in tokenizer.encode(document, add_special_tokens=False).ids if token < vocab]
        current += ids[len(start) :] if start and ids[: len(start)] == start else ids
        if len(current) < length:
            continue
        found.append(current[:length])
        if len(found) == count:
            return found
        if len(rests) < count:
            rest = current[length:]
            rests += ([*start, *rest[first : first + room]] for first in range(0, len(rest) - room + 1, room))
        current = list(start)
    found += rests[: count - len(found)]
    return found or [list(islice(cycle(current or [0]), length))]
