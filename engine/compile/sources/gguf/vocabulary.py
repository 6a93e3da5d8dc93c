"""The vocabulary of a GGUF file, checked, and how a text is cut before anything is merged.

Patterns are those of the published tokenizer.json of each family (Oniguruma); names and the settings that hang on
them are those that llama.cpp reads and writes.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from engine.compile.sources.gguf.header import GgufHeader
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields

PREFIX = "tokenizer.ggml."
Step = dict[str, object]  # a part of a tokenizer.json
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
PHI_3_UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")  # the other special tokens take white space behind them along


class TokenKind(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """tokens and kinds by id. scores: empty where the file has none. merges: pairs, first ones first. strips: special
    tokens take the white space behind them along."""

    title: str
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    scores: tuple[float, ...]
    merges: tuple[str, ...]
    strips: bool = False

    def ids(self) -> dict[str, int]:
        """Id by token, without those that only fill the table. CompileError for a token that is there twice."""
        found: dict[str, int] = {}
        for identifier, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True)):
            if kind == TokenKind.UNUSED:
                continue
            if token in found:
                raise CompileError(f"{self.title}: the tokenizer has the token {brief(token)} twice")
            found[token] = identifier
        return found

    def document(self, model: Step, normalizer: Step | None, pre_tokenizer: Step | None, decoder: Step) -> Step:
        steps = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder}
        return {"version": "1.0", "added_tokens": self._added(), **steps, "model": model}

    def _added(self) -> list[Step]:
        """What is matched in text before anything is merged."""
        special = {TokenKind.CONTROL: True, TokenKind.UNKNOWN: True, TokenKind.USER_DEFINED: False}
        plain = dict.fromkeys(("single_word", "lstrip", "normalized"), False)
        return [
            {
                **plain,
                "id": identifier,
                "content": token,
                "rstrip": self.strips and token not in PHI_3_UNSTRIPPED,
                "special": special[TokenKind(kind)],
            }
            for identifier, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind in special and token
        ]


@dataclass(frozen=True, slots=True)
class Made:
    """A tokenizer.json without what stands around a text, and the family's habits where the file is silent. begin and
    end: ids of the tokens that may stand around a text. end None = the file's end token."""

    document: Step
    begin: int | None
    end: int | None = None
    adds_bos: bool = False
    adds_eos: bool = False


class TokenizerFields(ConfigFields):
    """Metadata below `tokenizer.ggml.`; CompileError for what has another type."""

    def __init__(self, header: GgufHeader) -> None:
        self.title = header.path.name
        self._is_phi3 = header.metadata.get("general.architecture") == "phi3"
        super().__init__(header.metadata, self.title, prefix=PREFIX)

    def token(self, key: str, tokens: tuple[str, ...], default: int | None = None) -> int | None:
        """The id of a token, None when there is none."""
        value = default if self.raw(key) is None else self.raw(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(tokens):
            raise self._refused(key, f"a token id below {len(tokens)}", value)
        return value

    def octets(self, key: str) -> bytes:
        """An array of bytes, empty when absent."""
        if not self.has(key):
            return b""
        value = self.raw(key)
        if not isinstance(value, np.ndarray) or value.dtype.itemsize != 1:
            raise self._refused(key, "an array of bytes", value)
        return value.tobytes()

    def vocabulary(self) -> Vocabulary:
        """Tokens, kinds, scores and merges, of lengths that fit."""
        tokens = self._strings("tokens")
        if not tokens:
            raise CompileError(f"{self.title} has no tokenizer ({PREFIX}tokens)")
        count = len(tokens)
        kinds = tuple(int(kind) for kind in self._numbers("token_type", count, integers=True))
        scores = tuple(float(score) for score in self._numbers("scores", count, integers=False))
        kinds = kinds or (TokenKind.NORMAL,) * count
        strips = self._is_phi3 and self.text("model", "") == "llama"
        return Vocabulary(self.title, tokens, kinds, scores, self._strings("merges"), strips)

    def _strings(self, key: str) -> tuple[str, ...]:
        value = self.raw(key)
        if value is None or (isinstance(value, np.ndarray) and not value.size):
            return ()
        if not isinstance(value, tuple):
            raise self._refused(key, "an array of strings", value)
        return value

    def _numbers(self, key: str, count: int, integers: bool) -> list[int] | list[float]:
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, np.ndarray) or len(value) != count or (integers and value.dtype.kind not in "iu"):
            raise self._refused(key, f"an array of {count} numbers", value)
        listed: list[int] | list[float] = value.tolist()
        return listed


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """patterns: each cuts the pieces of the one before. adds_bos: where the file does not say it. ignores_merges: a
    piece that is a token as a whole becomes that token. composes: text is brought to NFC first. byte_level: tokens
    spell bytes as GPT-2 does; else they are plain text in which U+2581 stands for a space."""

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False
    composes: bool = False
    byte_level: bool = True


def _cut(*patterns: str, **habits: bool) -> PreTokenizer:
    return PreTokenizer(patterns, **habits)


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_CASED_ENDING = _CASED % (_CONTRACTIONS + "?", _CONTRACTIONS + "?")
_CASED_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_MARKED_WORDS = rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_CHINESE_JAPANESE = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_BLOOM_WORDS = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_DIGIT = r"\p{N}"
_GPT_2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA_3_SPLIT = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN_2_SPLIT = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_LINES = r"[^\n]+|\n+"

_GPT_2 = _cut(_GPT_2_SPLIT)
_GPT_NEOX = replace(_GPT_2, composes=True)
_SINGLE_DIGITS = _cut(_DIGIT, _GPT_2_SPLIT)
_LLAMA_3 = _cut(_LLAMA_3_SPLIT, ignores_merges=True, adds_bos=True)
_DBRX = _cut(_LLAMA_3_SPLIT)
_QWEN_2 = _cut(_QWEN_2_SPLIT, composes=True)
_QWEN_2_AS_WRITTEN = _cut(_QWEN_2_SPLIT)
# Expected ids of this name keep combining marks apart, so text is not composed.
_QWEN_3_5 = _cut(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
# Letters are those that the published pattern lists: scripts with two cases, as Unicode 12 had them.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = _cut(
    "[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    *(r"\s+$", _EAST_ASIAN, _DIGIT),
)
_DEEPSEEK_CODER = _cut("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _DIGIT)
_DEEPSEEK_3 = _cut(r"\p{N}{1,3}", _CHINESE_JAPANESE, rf"{_MARKED_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}")
_SPARK = _cut(r"\p{N}{1,3}", _CHINESE_JAPANESE, rf"{_MARKED_WORDS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+", _DIGIT)
_AFMOE = _cut(
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
    rf"{_MARKED_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+"
)
_YOUTU = _cut(rf"{_YOUTU_SCRIPTS}|{_CHINESE_JAPANESE}", rf"{_CASED_ENDING}|\p{{N}}|{_CASED_REST}", ignores_merges=True)
_TEKKEN = _cut(rf"{_CASED % ('', '')}|\p{{N}}|{_CASED_REST}", ignores_merges=True, adds_bos=True)
_GPT_4O_SPLIT = rf"{_CASED_ENDING}|\p{{N}}{{1,3}}|{_CASED_REST}"
_GPT_4O = _cut(_GPT_4O_SPLIT)
_TINY_AYA = _cut(r"\d{1,3}(?=(?:\d{3})*\b)", _GPT_4O_SPLIT)
_NOT_HAN = r"&&[^\p{Han}]]"
_KIMI_LOWER, _KIMI_UPPER = _LOWER[:-1] + _NOT_HAN, _UPPER[:-1] + _NOT_HAN
_KIMI = _cut(
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
)
_FALCON = _cut(r"[\p{P}!-/:-@\[-`{-~]+", _GPT_2_SPLIT, "[0-9][0-9][0-9]")
_DEFAULT = _cut(r"[\p{P}$+<=>^~|]+", _GPT_2_SPLIT, r"\p{N}+", "[0-9][0-9][0-9]")
_BLOOM = _cut(_BLOOM_WORDS)
_BAILING = _cut(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_EXAONE_MOE = _cut(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
# Its image tokens are special tokens, which are found before any pattern.
_CHAMELEON = _cut(r"[\t\n]|    |  ", _DIGIT, r"[\p{P}!-/:-@\[-`{-~]", _GPT_2_SPLIT, adds_bos=True)
_JAIS_2_SPACES = "|".join([*(rf"\s{{{2**power}}}(?!\S)" for power in range(9, 1, -1)), r"\s{1,2}(?!\S)", r"\s"])
_JAIS_2 = _cut(rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|{_JAIS_2_SPACES}")
_SEED = _cut(rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}")
_MINICPM_5 = _cut(r"\p{N}{1,3}", rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_SPACES}", ignores_merges=True)
_SPACED = _cut(_LINES, byte_level=False)
GEMMA_4 = replace(_SPACED, adds_bos=True)

_ROWS: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", _DEFAULT),
    ("gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat", _GPT_2),
    ("a.x-4.0 mellum modern-bert exaone4 jais trillion granite-docling", _GPT_2),
    ("mpt olmo", _GPT_NEOX),
    ("command-r", replace(_SINGLE_DIGITS, composes=True)),
    ("starcoder refact smollm codeshell exaone minerva-7b mellum2", _SINGLE_DIGITS),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", _LLAMA_3),
    ("smaug-bpe dbrx chatglm-bpe", _DBRX),
    ("glm4 glm5", replace(_DBRX, ignores_merges=True)),
    ("jais-2", _JAIS_2),
    ("qwen2 megrez", _QWEN_2),
    ("deepseek-r1-qwen stablelm2 kormo f2llmv2 hunyuan solar-open grok-2", _QWEN_2_AS_WRITTEN),
    ("qwen35", _QWEN_3_5),
    ("ufakzeka", _cut(rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}")),
    ("laguna", _cut(_LINES, _QWEN_2_SPLIT)),
    ("seed-coder", _SEED),
    ("minicpm5", _MINICPM_5),
    ("bailingmoe bailingmoe2 llada-moe", _BAILING),
    ("exaone-moe", _EXAONE_MOE),
    ("deepseek-llm", _DEEPSEEK_LLM),
    ("deepseek-coder", _DEEPSEEK_CODER),
    ("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", _DEEPSEEK_3),
    ("spark2_5", _SPARK),
    ("afmoe", _AFMOE),
    ("youtu", _YOUTU),
    ("tekken", _TEKKEN),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT_4O),
    ("granite-embed-multi-97m", replace(_GPT_4O, ignores_merges=True)),
    ("tiny_aya cohere2moe", _TINY_AYA),
    ("kimi-k2", _KIMI),
    ("superbpe", _cut(r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    ("falcon", _FALCON),
    ("poro-chat bloom gpt3-finnish", _BLOOM),
    ("viking", _cut(_BLOOM_WORDS, _DIGIT)),
    ("chameleon", _CHAMELEON),
    ("gemma4 granite-embed-multi-311m sarvam-moe", _SPACED),
)
PRE_TOKENIZERS = {name: row for names, row in _ROWS for name in names.split()}


def pre_tokenizer(title: str, name: str) -> PreTokenizer:
    """By the name a file gives. UnsupportedModel for another: tokens cut otherwise would make a worse model of it."""
    if not name:
        raise UnsupportedModel(f"{title} names no pre-tokenizer (tokenizer.ggml.pre); convert the model anew")
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"{title}: pre-tokenizer {brief(name)} is not supported (docs/how-to/gguf.md lists what is)"
        )
    return PRE_TOKENIZERS[name]
