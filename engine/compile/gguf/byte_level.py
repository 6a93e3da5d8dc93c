"""`tokenizer.ggml.model` gpt2: byte-level BPE with the pre-tokenizer that the file names."""

from dataclasses import dataclass

from engine.compile.gguf.vocabulary import Vocabulary
from engine.errors import CompileError, UnsupportedModel
from engine.files.content import brief

Step = dict[str, object]


def _split(pattern: str) -> Step:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _bytes(use_regex: bool) -> Step:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


_DIGITS: Step = {"type": "Digits", "individual_digits": True}
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_CASED_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Steps before the last one, which makes bytes. adds_bos: unless the file says otherwise.

    ignores_merges: a piece that is a token as a whole becomes that token. composes: text is brought to NFC first.
    splits_words: the last step also splits by GPT-2's own rule.
    """

    steps: tuple[Step, ...]
    ignores_merges: bool = False
    adds_bos: bool = False
    composes: bool = False
    splits_words: bool = False


_GPT_2 = PreTokenizer((), splits_words=True)
_SINGLE_DIGITS = PreTokenizer((_DIGITS,), splits_words=True)
_LLAMA_3_SPLIT = _split(rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}")
_LLAMA_3 = PreTokenizer((_LLAMA_3_SPLIT,), ignores_merges=True, adds_bos=True)
_QWEN_2_SPLIT = _split(rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}")
_QWEN_2 = PreTokenizer((_QWEN_2_SPLIT,), composes=True)
_QWEN_3_5 = PreTokenizer(
    (
        _split(
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
        ),
    ),
    composes=True,
)
_DEEPSEEK_CODER = PreTokenizer(
    (
        *(_split("[\r\n]"), _split(r"\s?\p{L}+"), _split(r"\s?\p{P}+")),
        *(_split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"), _DIGITS),
    )
)
_DEEPSEEK_3 = PreTokenizer(
    (
        _split(r"\p{N}{1,3}"),
        _split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
        _split(
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
        ),
    )
)
_TEKKEN = PreTokenizer((_split(rf"{_CASED % ('', '')}|\p{{N}}|{_CASED_REST}"),), ignores_merges=True, adds_bos=True)
_GPT_4O = PreTokenizer(
    (_split(rf"{_CASED % (_CONTRACTIONS + '?', _CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{_CASED_REST}"),)
)

PRE_TOKENIZERS = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3"), _LLAMA_3),
    "smaug-bpe": PreTokenizer((_LLAMA_3_SPLIT,)),
    **dict.fromkeys(("qwen2", "megrez"), _QWEN_2),
    "deepseek-r1-qwen": PreTokenizer((_QWEN_2_SPLIT,)),
    "qwen35": _QWEN_3_5,
    "gpt-2": _GPT_2,
    **dict.fromkeys(("smollm", "starcoder"), _SINGLE_DIGITS),
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-v3": _DEEPSEEK_3,
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT_4O),
}


def pre_tokenizer(title: str, name: str) -> PreTokenizer:
    """By the name a file gives. UnsupportedModel for another: tokens cut otherwise would make a worse model of it."""
    if name not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise UnsupportedModel(f"{title}: pre-tokenizer {brief(name)} is not supported (supported: {known})")
    return PRE_TOKENIZERS[name]


def byte_level_tokenizer(vocabulary: Vocabulary, pre: PreTokenizer) -> dict[str, object]:
    """As tokenizer.json, without merges that make no token. CompileError for merges that are no pairs."""
    merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    wrong = next((merge for merge in merges if len(merge) != 2), None)
    if wrong is not None:
        raise CompileError(f"{vocabulary.title}: the merge {brief(' '.join(wrong))} is no pair")
    ids = vocabulary.ids()
    useful = [pair for pair in merges if pair[0] in ids and pair[1] in ids and "".join(pair) in ids]
    return {
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": {"type": "NFC"} if pre.composes else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*pre.steps, _bytes(pre.splits_words)]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "ignore_merges": pre.ignores_merges, "vocab": ids, "merges": useful},
    }
