"""`tokenizer.ggml.model` llama: SentencePiece BPE, whose scores say which pieces are merged first."""

from collections.abc import Iterator

from engine.compile.gguf.vocabulary import Made, TokenizerFields, TokenKind, Vocabulary
from engine.errors import CompileError

SPACE = "\u2581"
Step = dict[str, object]


def sentencepiece_tokenizer(fields: TokenizerFields, vocabulary: Vocabulary) -> Made:
    """Ids that the file leaves out are those of Llama 2. CompileError when there are no scores."""
    if not vocabulary.scores:
        raise CompileError(f"{vocabulary.title}: the tokenizer has no scores")
    tokens = vocabulary.tokens
    unknown = fields.token("unknown_token_id", tokens, 0)
    has_prefix = fields.flag("add_space_prefix", True)
    model = {
        "type": "BPE",
        "unk_token": None if unknown is None else tokens[unknown],
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": vocabulary.ids(),
        "merges": list(_merges(vocabulary)),
    }
    document: Step = {
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": {"type": "Sequence", "normalizers": spaced(has_prefix)},
        "pre_tokenizer": None,
        "decoder": spaced_decoder(has_prefix),
        "model": model,
    }
    return Made(document, fields.token("bos_token_id", tokens, 1), fields.token("eos_token_id", tokens, 2), True)


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
