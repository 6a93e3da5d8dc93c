"""The tokenizers of GGUF files by `tokenizer.ggml.model`, and the text half of a bundle that they make.

llama: SentencePiece BPE, whose scores say which pieces are merged first. gpt2 and gemma4: BPE with merges, over bytes
or over plain text. t5: SentencePiece unigram, whose scores are logarithms of probabilities (T5, XLM-RoBERTa). bert:
WordPiece; the file marks what begins a word (U+2581), not what goes on (##).
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from gguf.constants import Keys
from numpy.typing import NDArray

from engine.bundle.manifest import TextSpec
from engine.compile.sources.gguf.header import GgufHeader
from engine.compile.sources.gguf.vocabulary import (
    ENDS,
    GEMMA_4,
    Made,
    PreTokenizer,
    Step,
    TokenizerFields,
    TokenKind,
    Vocabulary,
    pre_tokenizer,
)
from engine.compile.sources.text_files import TOKENIZER_FILE, describe_text, either_template, usual_sampling
from engine.errors import CompileError, UnsupportedModel
from engine.files import TEMPLATE_BYTES, brief
from engine.text.format_table import END_OF_TURN
from engine.text.tokenizer import parsed

SPACE = "\u2581"
SAMPLING = {
    "temperature": Keys.General.SAMPLING_TEMP,
    "top_k": Keys.General.SAMPLING_TOP_K,
    "top_p": Keys.General.SAMPLING_TOP_P,
    "min_p": Keys.General.SAMPLING_MIN_P,
    "repetition_penalty": Keys.General.SAMPLING_PENALTY_REPEAT,
}


def sentencepiece_tokenizer(fields: TokenizerFields, vocabulary: Vocabulary) -> Made:
    """Ids that the file leaves out are those of Llama 2. CompileError when there are no scores."""
    if not vocabulary.scores:
        raise CompileError(f"{vocabulary.title}: the tokenizer has no scores")
    tokens = vocabulary.tokens
    unknown = fields.token("unknown_token_id", tokens, 0)
    has_prefix = fields.flag("add_space_prefix", True)
    model: Step = {
        "type": "BPE",
        "unk_token": None if unknown is None else tokens[unknown],
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": vocabulary.ids(),
        "merges": list(_merges(vocabulary)),
    }
    document = vocabulary.document(model, in_order(*spaced(has_prefix)), None, spaced_decoder(has_prefix))
    return Made(document, fields.token("bos_token_id", tokens, 1), fields.token("eos_token_id", tokens, 2), True)


def in_order(*normalizers: Step) -> Step:
    return {"type": "Sequence", "normalizers": list(normalizers)}


def spaced(has_prefix: bool) -> list[Step]:
    """Normalizers that write spaces as U+2581. has_prefix: text begins with one more."""
    prefix: list[Step] = [{"type": "Prepend", "prepend": SPACE}] if has_prefix else []
    return [*prefix, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]


def spaced_decoder(has_prefix: bool) -> Step:
    """From pieces to the text: U+2581 is a space, `<0xE2>` one byte, and the space in front is not the text's."""
    strip: list[Step] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    spaces = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}


def _merges(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    """Every way to make a piece of two, best pieces first; of one piece those with the longest left part first."""
    rows = zip(vocabulary.tokens, vocabulary.kinds, vocabulary.scores, strict=True)
    scores = {token: score for token, kind, score in rows if kind == TokenKind.NORMAL}
    for token in sorted(scores, key=lambda token: -scores[token]):
        for cut in range(len(token) - 1, 0, -1):
            if token[:cut] in scores and token[cut:] in scores:
                yield token[:cut], token[cut:]


def byte_level_tokenizer(fields: TokenizerFields, vocabulary: Vocabulary) -> Made:
    """Cut as the file names it. UnsupportedModel for a name that is not known, CompileError for wrong merges."""
    return _made(fields, vocabulary, pre_tokenizer(fields.title, fields.text("pre", "")))


def gemma4_tokenizer(fields: TokenizerFields, vocabulary: Vocabulary) -> Made:
    """Gemma 4 names no pre-tokenizer. CompileError for wrong merges."""
    return _made(fields, vocabulary, GEMMA_4)


def _made(fields: TokenizerFields, vocabulary: Vocabulary, pre: PreTokenizer) -> Made:
    unknown = None if pre.byte_level else fields.token("unknown_token_id", vocabulary.tokens)
    form: Step = {"behavior": "Isolated", "invert": False}
    pieces: list[Step] = [{"type": "Split", "pattern": {"Regex": pattern}, **form} for pattern in pre.patterns]
    normalizer: Step | None = spaced(has_prefix=False)[0]
    decoder = spaced_decoder(has_prefix=False)
    if pre.byte_level:
        pieces.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
        normalizer = {"type": "NFC"} if pre.composes else None
        decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    model: Step = {
        "type": "BPE",
        "unk_token": None if unknown is None else vocabulary.tokens[unknown],
        "fuse_unk": not pre.byte_level,
        "byte_fallback": not pre.byte_level,
        "ignore_merges": pre.ignores_merges,
        "vocab": vocabulary.ids(),
        "merges": _merge_list(vocabulary),
    }
    document = vocabulary.document(model, normalizer, {"type": "Sequence", "pretokenizers": pieces}, decoder)
    return Made(document, fields.token("bos_token_id", vocabulary.tokens), adds_bos=pre.adds_bos)


def _merge_list(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Pairs, without those that make no token."""
    if not vocabulary.merges:
        raise CompileError(f"{vocabulary.title}: the tokenizer has no merges")
    ids, useful = vocabulary.ids(), []
    for merge in vocabulary.merges:
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            raise CompileError(f"{vocabulary.title}: the merge {brief(merge)} is no pair")
        if left in ids and right in ids and left + right in ids:
            useful.append((left, right))
    return useful


_VALUE = np.uint32(1 << 31)


def unigram_tokenizer(fields: TokenizerFields, vocabulary: Vocabulary) -> Made:
    """Ids that the file leaves out are those of T5. CompileError when there are no scores or no unknown token."""
    if not vocabulary.scores:
        raise CompileError(f"{vocabulary.title}: the tokenizer has no scores")
    tokens = vocabulary.tokens
    unknown = fields.token("unknown_token_id", tokens, 2)
    has_prefix = fields.flag("add_space_prefix", False)
    charsmap = fields.octets("precompiled_charsmap")
    if charsmap and not _is_sound(charsmap):
        raise CompileError(f"{vocabulary.title}: tokenizer.ggml.precompiled_charsmap is damaged")
    replaced: Step = {"type": "Precompiled", "precompiled_charsmap": b64encode(charsmap).decode()}
    first = [replaced] if charsmap else []
    if fields.flag("remove_extra_whitespaces", False):
        spaces: Step = {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}
        first += [spaces, {"type": "Strip", "strip_left": True, "strip_right": True}]
    has_bytes, pieces = TokenKind.BYTE in vocabulary.kinds, list(zip(tokens, vocabulary.scores, strict=True))
    model: Step = {"type": "Unigram", "unk_id": unknown, "vocab": pieces, "byte_fallback": has_bytes}
    document = vocabulary.document(model, in_order(*first, *spaced(has_prefix)), None, spaced_decoder(has_prefix))
    begin, end = fields.token("bos_token_id", tokens), fields.token("eos_token_id", tokens, 1)
    return Made(document, begin, end, adds_eos=True)


def _is_sound(charsmap: bytes) -> bool:
    """Whether no text can lead out of it: 4 bytes of size, a double array (darts-clone), replacements ended by zero. A
    node's children lie in the 256 entries around its own place xor its offset; values are places of replacements."""
    size = int.from_bytes(charsmap[:4], "little")
    if size % 1024 or not 0 < size <= len(charsmap) - 4:
        return False
    units: NDArray[np.uint32] = np.frombuffer(charsmap, "<u4", size // 4, offset=4)
    replacements = np.frombuffer(charsmap, np.uint8, offset=4 + size)
    is_value = (units & _VALUE) != 0
    nodes, values = units[~is_value], units[is_value] & ~_VALUE
    offsets = (nodes >> 10) << ((nodes & 512) >> 6)
    children = (np.flatnonzero(~is_value).astype(np.uint32) ^ offsets) | 255
    if not (children < len(units)).all() or not (values < len(replacements)).all():
        return False
    try:
        replacements.tobytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    return bool(((replacements[values] & 0xC0) != 0x80).all())


GOES_ON = "##"
LONGEST_WORD = 100  # characters, as BERT's own: a longer word is unknown


def wordpiece_tokenizer(fields: TokenizerFields, vocabulary: Vocabulary) -> Made:
    """Ids that the file leaves out are those of BERT. CompileError for a token that is there twice, or unusable."""
    tokens, words = vocabulary.tokens, _spelled(vocabulary)
    number = fields.token("unknown_token_id", tokens, 100)
    unknown = next((word for word, identifier in words.items() if identifier == number), None)
    if unknown is None:
        raise CompileError(f"{fields.place('unknown_token_id')} {number} is an unused token")
    begin = fields.token("bos_token_id", tokens, fields.token("cls_token_id", tokens, 101))
    lowercase = fields.flag("normalizer.lowercase", True)
    normalizer: Step = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": fields.flag("normalizer.strip_accents", lowercase),
        "lowercase": lowercase,
    }
    model: Step = {
        "type": "WordPiece",
        "unk_token": unknown,
        "continuing_subword_prefix": GOES_ON,
        "max_input_chars_per_word": LONGEST_WORD,
        "vocab": words,
    }
    decoder: Step = {"type": "WordPiece", "prefix": GOES_ON, "cleanup": True}
    document = vocabulary.document(model, normalizer, {"type": "BertPreTokenizer"}, decoder)
    end = fields.token("seperator_token_id", tokens, 102)  # the format's own spelling
    return Made(document, begin, end, adds_bos=True, adds_eos=True)


def _spelled(vocabulary: Vocabulary) -> dict[str, int]:
    """Id by token, spelled as in a vocab.txt. What stands in brackets has no mark in either."""
    found: dict[str, int] = {}
    for token, identifier in vocabulary.ids().items():
        is_whole = vocabulary.kinds[identifier] != TokenKind.NORMAL or (
            token[:1] == "[" and token[2:] != "" and token[-1] == "]"
        )
        spelled = token if is_whole else token.removeprefix(SPACE) if token.startswith(SPACE) else GOES_ON + token
        if spelled in found:
            raise CompileError(f"{vocabulary.title}: the tokenizer has the token {spelled!r} twice")
        found[spelled] = identifier
    return found


TEMPLATE, TOOL_TEMPLATE = "tokenizer.chat_template", "tokenizer.chat_template.tool_use"
# The file has one end token where a checkpoint may have several: control tokens of these names are ends as well.
ENDING = (*END_OF_TURN, "<|endoftext|>", "<|end_of_text|>", "<|observation|>")
PART_END, WHOLE_END = "<|end|>", "<|return|>"  # where a vocabulary has both, the first ends a part of an answer alone
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
    model, tokens = fields.text("model", ""), vocabulary.tokens
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
    try:
        tokenizer = parsed(serialized)
    except ValueError as error:
        raise CompileError(f"{fields.title}: the tokenizer cannot be used: {error}") from error
    # Where there are tools the template for tools; it alone where the file has no other.
    template = either_template(_template(header, TEMPLATE), _template(header, TOOL_TEMPLATE))
    text = describe_text(folder, tokenizer, settings, template, end_ids(fields, vocabulary))
    advised = {name: header.metadata.get(key) for name, key in SAMPLING.items()}
    return msgspec.structs.replace(text, sampling=usual_sampling(advised))


def end_ids(fields: TokenizerFields, vocabulary: Vocabulary) -> list[int]:
    """What the file says ends an answer, and control tokens named like an end. CompileError for what is no token."""
    tokens = vocabulary.tokens
    declared = [identifier for key in ENDS if (identifier := fields.token(key, tokens)) is not None]
    inner = PART_END if WHOLE_END in tokens else ""
    named = [tokens.index(mark) for mark in ENDING if mark in tokens and mark != inner]
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
        "special_tokens": {token: {"id": token, "ids": [each], "tokens": [token]} for token, each in around.items()},
    }


def _piece(kind: str, name: str) -> dict[str, object]:
    return {kind: {"id": name, "type_id": 0}}


def _template(header: GgufHeader, key: str) -> str | None:
    value = header.metadata.get(key)
    if value is not None and (not isinstance(value, str) or len(value.encode()) > TEMPLATE_BYTES):
        raise CompileError(f"{header.path.name}: {key} must be a string of at most {TEMPLATE_BYTES} bytes")
    return value
