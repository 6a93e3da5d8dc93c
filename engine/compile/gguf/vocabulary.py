"""The vocabulary of a GGUF file: tokens by id with their kinds, checked; and what the file says of special ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from engine.compile.gguf.header import GgufHeader
from engine.compile.gguf.reader import Value
from engine.errors import CompileError
from engine.files.content import brief

PREFIX = "tokenizer.ggml."
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """tokens and kinds by id. scores: empty where the file has none. merges: pairs, first ones first."""

    title: str
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    scores: tuple[float, ...]
    merges: tuple[str, ...]

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

    def added(self) -> list[dict[str, object]]:
        """What is matched in text before anything is merged, as tokenizer.json lists it."""
        special = {TokenKind.CONTROL: True, TokenKind.UNKNOWN: True, TokenKind.USER_DEFINED: False}
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return [
            {"id": identifier, "content": token, **plain, "special": special[TokenKind(kind)]}
            for identifier, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind in special and token
        ]


@dataclass(frozen=True, slots=True)
class Made:
    """A tokenizer.json without what stands around a text, and the family's habits where the file is silent.

    begin and end: ids of the tokens that may stand around a text. end None = the file's end token.
    """

    document: dict[str, object]
    begin: int | None
    end: int | None = None
    adds_bos: bool = False
    adds_eos: bool = False


class TokenizerFields:
    """Metadata below `tokenizer.ggml.`; CompileError for what has another type."""

    def __init__(self, header: GgufHeader) -> None:
        self.title = header.path.name
        self._metadata: Mapping[str, Value] = header.metadata

    def text(self, key: str) -> str:
        """A string, "" when absent."""
        value = self._metadata.get(PREFIX + key, "")
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A truth value."""
        value = self._metadata.get(PREFIX + key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def token(self, key: str, tokens: tuple[str, ...], default: int | None = None) -> int | None:
        """The id of a token, None when there is none."""
        value = self._metadata.get(PREFIX + key, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(tokens):
            raise self._wrong(key, f"a token id below {len(tokens)}")
        return value

    def octets(self, key: str) -> bytes:
        """An array of bytes, empty when absent."""
        value = self._metadata.get(PREFIX + key)
        if value is None:
            return b""
        if not isinstance(value, np.ndarray) or value.dtype.itemsize != 1:
            raise self._wrong(key, "an array of bytes")
        return value.tobytes()

    def vocabulary(self) -> Vocabulary:
        """Tokens, kinds, scores and merges, of lengths that fit."""
        tokens = self._strings("tokens")
        if not tokens:
            raise CompileError(f"{self.title} has no tokenizer ({PREFIX}tokens)")
        count = len(tokens)
        kinds = tuple(int(kind) for kind in self._numbers("token_type", count, integers=True))
        scores = tuple(float(score) for score in self._numbers("scores", count, integers=False))
        return Vocabulary(self.title, tokens, kinds or (TokenKind.NORMAL,) * count, scores, self._strings("merges"))

    def _strings(self, key: str) -> tuple[str, ...]:
        value = self._metadata.get(PREFIX + key, ())
        if isinstance(value, np.ndarray) and not value.size:
            return ()
        if not isinstance(value, tuple):
            raise self._wrong(key, "an array of strings")
        return value

    def _numbers(self, key: str, count: int, integers: bool) -> list[int] | list[float]:
        value = self._metadata.get(PREFIX + key)
        if value is None:
            return []
        if not isinstance(value, np.ndarray) or len(value) != count or (integers and value.dtype.kind not in "iu"):
            raise self._wrong(key, f"an array of {count} numbers")
        listed: list[int] | list[float] = value.tolist()
        return listed

    def _wrong(self, key: str, wanted: str) -> CompileError:
        return CompileError(f"{self.title}: {PREFIX}{key} must be {wanted}")
