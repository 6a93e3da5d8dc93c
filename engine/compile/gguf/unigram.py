"""`tokenizer.ggml.model` t5: SentencePiece unigram, whose scores are logarithms of probabilities (T5, XLM-RoBERTa)."""

from base64 import b64encode

import numpy as np
from numpy.typing import NDArray

from engine.compile.gguf.sentencepiece import Step, spaced, spaced_decoder
from engine.compile.gguf.vocabulary import Made, TokenizerFields, TokenKind, Vocabulary
from engine.errors import CompileError

_VALUE = np.uint32(1 << 31)


def unigram_tokenizer(fields: TokenizerFields, vocabulary: Vocabulary) -> Made:
    """Ids that the file leaves out are those of T5. CompileError when there are no scores or no unknown token."""
    if not vocabulary.scores:
        raise CompileError(f"{vocabulary.title}: the tokenizer has no scores")
    tokens = vocabulary.tokens
    unknown = fields.token("unknown_token_id", tokens, 2)
    has_prefix = fields.flag("add_space_prefix", False)
    charsmap = fields.octets("precompiled_charsmap")
    first: list[Step] = [_precompiled(vocabulary.title, charsmap)] if charsmap else []
    if fields.flag("remove_extra_whitespaces", False):
        spaces: Step = {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}
        first += [spaces, {"type": "Strip", "strip_left": True, "strip_right": True}]
    has_bytes = TokenKind.BYTE in vocabulary.kinds
    pieces = list(zip(tokens, vocabulary.scores, strict=True))
    document: Step = {
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": {"type": "Sequence", "normalizers": [*first, *spaced(has_prefix)]},
        "pre_tokenizer": None,
        "decoder": spaced_decoder(has_prefix),
        "model": {"type": "Unigram", "unk_id": unknown, "vocab": pieces, "byte_fallback": has_bytes},
    }
    begin, end = fields.token("bos_token_id", tokens), fields.token("eos_token_id", tokens, 1)
    return Made(document, begin, end, adds_eos=True)


def _precompiled(title: str, charsmap: bytes) -> Step:
    if not _is_sound(charsmap):
        raise CompileError(f"{title}: tokenizer.ggml.precompiled_charsmap is damaged")
    return {"type": "Precompiled", "precompiled_charsmap": b64encode(charsmap).decode()}


def _is_sound(charsmap: bytes) -> bool:
    """Whether no text can lead out of it: 4 bytes of size, a double array (darts-clone), replacements ended by zero.

    A node's children lie in the 256 entries around its own place xor its offset; values are places of replacements.
    """
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
