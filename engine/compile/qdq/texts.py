"""The text that integer graphs are calibrated on: a file, the shipped models' own corpus, or built-in samples."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from engine.bundle.manifest import TextSpec
from engine.compile.qdq.samples import CONVERSATIONS, DOCUMENTS
from engine.compile.text_files import load_tokenizer
from engine.demo.corpus.conversation import render
from engine.demo.corpus.mixture import draw
from engine.demo.location import SHIPPED
from engine.errors import CompileError, InvalidRequest
from engine.text.rendering import RenderRequest, read_template
from engine.text.template_pool import render_all

DEMO_SAMPLES = 1500
MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_CHARS = 100_000


def calibration_documents(source: Path, file: Path | None, folder: Path, text: TextSpec) -> list[str]:
    """Whole documents in the form the model will see them. CompileError when the file cannot be read."""
    if file is not None:
        return [read_text(file)]
    if source.resolve() in [folder() for folder in SHIPPED.values()]:
        rng = Random("calibration")
        return ["".join(span.text for span in render(draw(rng))) for _ in range(DEMO_SAMPLES)]
    return [*_rendered(folder, text), *DOCUMENTS]


def read_text(file: Path) -> str:
    """A text file; CompileError when it cannot be read or holds nothing."""
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            content = stream.read(MAX_FILE_BYTES)
    except OSError as error:
        raise CompileError(f"--calibration {file} cannot be read: {error.strerror or error}") from error
    if not content.strip():
        raise CompileError(f"--calibration {file} is empty")
    return content


def _rendered(folder: Path, text: TextSpec) -> list[str]:
    """The built-in conversations through the model's template; as plain text where it has none or refuses them."""
    plain = [f"{question}\n{answer}" for question, answer in CONVERSATIONS]
    if not text.chat_template:
        return plain
    names = {"bos_token": text.bos_token or "", "eos_token": text.eos_token or ""}
    chats = (
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in CONVERSATIONS
    )
    requests = [RenderRequest(chat, None, names, MAX_CHARS) for chat in chats]
    try:
        answers = asyncio.run(render_all(read_template(folder / text.chat_template), requests))
    except InvalidRequest:
        return plain
    return [words if answer.error else answer.text for answer, words in zip(answers, plain, strict=True)]


def token_sequences(
    documents: Sequence[str], folder: Path, text: TextSpec, vocab: int, length: int, count: int
) -> list[list[int]]:
    """At most `count` sequences of exactly `length` tokens, each beginning where a document does.

    Too little text is repeated until it fills one sequence.
    """
    tokenizer = load_tokenizer(folder)
    start = _bos(tokenizer, text)
    found: list[list[int]] = []
    current: list[int] = []
    for document in documents:
        if not current:
            current = list(start)
        ids = tokenizer.encode(document, add_special_tokens=False).ids
        current.extend(token for token in ids if token < vocab)
        if len(documents) == 1:
            return _cut(current, length, count)
        if len(current) >= length:
            found.append(current[:length])
            current = []
        if len(found) == count:
            return found
    return found or _cut(current, length, 1)


def _cut(tokens: list[int], length: int, count: int) -> list[list[int]]:
    tokens = tokens or [0]
    repeated = tokens * -(-length // len(tokens))
    return [repeated[start : start + length] for start in range(0, len(repeated) - length + 1, length)][:count]


def _bos(tokenizer: Tokenizer, text: TextSpec) -> list[int]:
    """The token a prompt begins with, where the model wants one."""
    bos = tokenizer.token_to_id(text.bos_token) if text.add_bos and text.bos_token else None
    return [] if bos is None else [bos]
