"""`tokenizer.ggml.model` llama: SentencePiece BPE, whose scores say which pieces are merged first."""

from collections.abc import Iterator

from engine.compile.gguf.vocabulary import TokenKind, Vocabulary
from engine.errors import CompileError

SPACE = "\u2581"


def sentencepiece_tokenizer(vocabulary: Vocabulary, unknown: int | None, has_prefix: bool) -> dict[str, object]:
    """As tokenizer.json. has_prefix: text begins with a space. CompileError when there are no scores."""
    if not vocabulary.scores:
        raise CompileError(f"{vocabulary.title}: the tokenizer has no scores")
    prefix = [{"type": "Prepend", "prepend": SPACE}] if has_prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    return {
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*prefix, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                *({"type": "ByteFallback"}, {"type": "Fuse"}),
                *strip,
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": None if unknown is None else vocabulary.tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocabulary.ids(),
            "merges": list(_merges(vocabulary)),
        },
    }


def _merges(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    """Every way to make a piece of two, best pieces first; of one piece those with the longest left part first."""
    rows = zip(vocabulary.tokens, vocabulary.kinds, vocabulary.scores, strict=True)
    scores = {token: score for token, kind, score in rows if kind == TokenKind.NORMAL}
    for token in sorted(scores, key=lambda token: -scores[token]):
        for cut in range(len(token) - 1, 0, -1):
            if token[:cut] in scores and token[cut:] in scores:
                yield token[:cut], token[cut:]
