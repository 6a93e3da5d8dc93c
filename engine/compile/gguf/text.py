"""Tokenizer, chat template and special tokens of a GGUF file, as the bundle keeps them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from engine.bundle.manifest import TextSpec
from engine.compile.gguf.bpe import byte_level_tokenizer, gemma4_tokenizer
from engine.compile.gguf.header import GgufHeader
from engine.compile.gguf.sentencepiece import sentencepiece_tokenizer
from engine.compile.gguf.unigram import unigram_tokenizer
from engine.compile.gguf.vocabulary import ENDS, Made, TokenizerFields, TokenKind, Vocabulary
from engine.compile.gguf.wordpiece import wordpiece_tokenizer
from engine.compile.text_files import TOKENIZER_FILE, describe_text
from engine.errors import CompileError, UnsupportedModel
from engine.files.content import brief, one_line
from engine.files.opening import TEMPLATE_BYTES
from engine.text.format_table import END_OF_TURN

TEMPLATE = "tokenizer.chat_template"
# The file has one end token where a checkpoint may have several: control tokens of these names are ends as well.
ENDING = (*END_OF_TURN, "<|endoftext|>", "<|end_of_text|>")
MODELS: dict[str, Callable[[TokenizerFields, Vocabulary], Made]] = {
    "gpt2": byte_level_tokenizer,
    "gemma4": gemma4_tokenizer,
    "llama": sentencepiece_tokenizer,
    "t5": unigram_tokenizer,
    "bert": wordpiece_tokenizer,
}


def write_gguf_text(header: GgufHeader, folder: Path, vocab: int) -> TextSpec:
    """Write tokenizer and template, and describe them. vocab: rows of the embedding. CompileError when unusable."""
    fields = TokenizerFields(header)
    vocabulary = fields.vocabulary()
    if len(vocabulary.tokens) > vocab:
        raise CompileError(f"{fields.title}: {len(vocabulary.tokens)} tokens, but the embedding has {vocab} rows")
    model, tokens = fields.text("model"), vocabulary.tokens
    if model not in MODELS:
        listed = ", ".join(MODELS)
        raise UnsupportedModel(f"{fields.title}: tokenizer {brief(model)} is not supported (supported: {listed})")
    made = MODELS[model](fields, vocabulary)
    end = fields.token("eos_token_id", tokens, made.end)
    settings = {
        "bos_token": None if made.begin is None else tokens[made.begin],
        "eos_token": None if end is None else tokens[end],
        "add_bos_token": fields.flag("add_bos_token", made.adds_bos),
    }
    before = made.begin if settings["add_bos_token"] else None
    behind = end if fields.flag("add_eos_token", made.adds_eos) else None
    document = made.document | {"post_processor": _template_around(tokens, before, behind)}
    serialized = json.dumps(document, ensure_ascii=False)
    (folder / TOKENIZER_FILE).write_text(serialized, encoding="utf-8", newline="\n")
    tokenizer, declared = _parsed(serialized, fields.title), end_ids(fields, vocabulary)
    return describe_text(folder, tokenizer, settings, _template(header), declared)


def end_ids(fields: TokenizerFields, vocabulary: Vocabulary) -> list[int]:
    """What the file says ends an answer, and control tokens named like an end. CompileError for what is no token."""
    tokens = vocabulary.tokens
    declared = [identifier for key in ENDS if (identifier := fields.token(key, tokens)) is not None]
    named = [tokens.index(mark) for mark in ENDING if mark in tokens]
    return list(dict.fromkeys(declared + [end for end in named if vocabulary.kinds[end] == TokenKind.CONTROL]))


def _template_around(tokens: Sequence[str], before: int | None, behind: int | None) -> dict[str, object] | None:
    """The tokens that the file wants around a text: an embedder's vector is that of the last of them."""
    around = {tokens[identifier]: identifier for identifier in (before, behind) if identifier is not None}
    if not around:
        return None

    def whole(text: str) -> list[dict[str, object]]:
        first, last = ([] if token is None else [_piece("SpecialToken", tokens[token])] for token in (before, behind))
        return [*first, _piece("Sequence", text), *last]

    return {
        "type": "TemplateProcessing",
        "single": whole("A"),
        "pair": [*whole("A"), *whole("B")],
        "special_tokens": {
            token: {"id": token, "ids": [identifier], "tokens": [token]} for token, identifier in around.items()
        },
    }


def _piece(kind: str, name: str) -> dict[str, object]:
    return {kind: {"id": name, "type_id": 0}}


def _parsed(serialized: str, title: str) -> Tokenizer:
    try:
        return Tokenizer.from_str(serialized)
    except Exception as error:  # the library raises exactly this class for every parse error
        raise CompileError(f"{title}: the tokenizer cannot be used: {one_line(error)}") from error


def _template(header: GgufHeader) -> str | None:
    value = header.metadata.get(TEMPLATE)
    if value is None:
        return None
    if not isinstance(value, str) or len(value.encode()) > TEMPLATE_BYTES:
        raise CompileError(f"{header.path.name}: {TEMPLATE} must be a string of at most {TEMPLATE_BYTES} bytes")
    return value
