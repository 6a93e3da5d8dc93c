"""`tokenizer.ggml.model` gpt2 and gemma4: BPE with merges, over bytes or over plain text."""

from engine.compile.gguf.pre_tokenizers import GEMMA_4, PreTokenizer, pre_tokenizer
from engine.compile.gguf.sentencepiece import SPACE, Step, spaced_decoder
from engine.compile.gguf.vocabulary import Made, TokenizerFields, Vocabulary
from engine.errors import CompileError
from engine.files.content import brief


def byte_level_tokenizer(fields: TokenizerFields, vocabulary: Vocabulary) -> Made:
    """Cut as the file names it. UnsupportedModel for a name that is not known, CompileError for wrong merges."""
    return _made(fields, vocabulary, pre_tokenizer(fields.title, fields.text("pre")))


def gemma4_tokenizer(fields: TokenizerFields, vocabulary: Vocabulary) -> Made:
    """Gemma 4 names no pre-tokenizer. CompileError for wrong merges."""
    return _made(fields, vocabulary, GEMMA_4)


def _made(fields: TokenizerFields, vocabulary: Vocabulary, pre: PreTokenizer) -> Made:
    unknown = None if pre.byte_level else fields.token("unknown_token_id", vocabulary.tokens)
    pieces: list[Step] = [_split(pattern) for pattern in pre.patterns]
    if pre.byte_level:
        pieces.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
    model = {
        "type": "BPE",
        "unk_token": None if unknown is None else vocabulary.tokens[unknown],
        "fuse_unk": not pre.byte_level,
        "byte_fallback": not pre.byte_level,
        "ignore_merges": pre.ignores_merges,
        "vocab": vocabulary.ids(),
        "merges": _merges(vocabulary),
    }
    document: Step = {
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": _normalizer(pre),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pieces},
        "decoder": _decoder(pre),
        "model": model,
    }
    return Made(document, fields.token("bos_token_id", vocabulary.tokens), adds_bos=pre.adds_bos)


def _split(pattern: str) -> Step:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _normalizer(pre: PreTokenizer) -> Step | None:
    if not pre.byte_level:
        return {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    return {"type": "NFC"} if pre.composes else None


def _decoder(pre: PreTokenizer) -> Step:
    if not pre.byte_level:
        return spaced_decoder(has_prefix=False)
    return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
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
