"""Text to token ids and token ids to their exact bytes, over the `tokenizers` library. Three layouts of vocabulary are
read, told from the `decoder` entry of tokenizer.json: byte-level BPE (GPT-2, Llama 3, Qwen: every character of a token
stands for one byte), SentencePiece style (Llama 2, Mistral: U+2581 is a space and `<0xE2>` is one byte) and WordPiece
(BERT: `##` goes on with a word, any other token begins one)."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import tokenizers

from engine.bundle.manifest import TextSpec
from engine.errors import BundleError, InvalidRequest
from engine.files import TOKENIZER_BYTES, confined, one_line, read_text, reading

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
LARGEST_ID = (1 << 24) - 1
_SPACE_MARK = "\u2581"
_WORD_GOES_ON = "##"
_UNBOUNDED_CHARS = 1 << 32  # white space may be no token at all, and a word of any length one
_SHRINKING_MODELS = ("WordPiece", "Unigram")


class _Layout(Enum):
    BYTE_LEVEL = "ByteLevel"
    SENTENCEPIECE = "SentencePiece"
    WORDPIECE = "WordPiece"


class Tokenizer:
    """Immutable after construction, so threads may share it. vocabulary: number of ids, added tokens included.
    longest_token_chars: most characters one token can stand for."""

    def __init__(
        self,
        serialized: str,
        bos_token: str | None = None,
        add_bos: bool = False,
        markers: Collection[str] = (),
        prefix: tuple[int, ...] = (),
    ) -> None:
        """serialized: of tokenizer.json; special tokens in one of `markers` are shown. prefix: in place of BOS.
        BundleError if unusable."""
        try:
            self._special_aware = parsed(serialized)
            description = json.loads(serialized)
            self._special_blind = _special_blind(self._special_aware, description, self._special_aware.pre_tokenizer)
            inner = _behind_the_first(description.get("pre_tokenizer"))
            self._blind_inside = inner and _special_blind(self._special_aware, description, inner)
        except ValueError as error:
            raise BundleError(f"the tokenizer cannot be read: {error}") from error
        for instance in filter(None, (self._special_aware, self._special_blind, self._blind_inside)):
            instance.no_truncation()
            instance.no_padding()
        added = self._special_aware.get_added_tokens_decoder()
        self.special_tokens = {token.content: token_id for token_id, token in added.items() if token.special}
        self._special_ids = frozenset(self.special_tokens.values())
        self._hidden_ids = frozenset(
            i for token, i in self.special_tokens.items() if not any(token in marker for marker in markers)
        )
        self._special_pattern = _special_pattern(tuple(token for token in added.values() if token.special))
        self._bytes = _token_table(
            self._special_aware.get_vocab(with_added_tokens=True),
            {token.content for token in added.values()},
            _layout(description.get("decoder")),
        )
        self._adds_space = _adds_space(description.get("decoder") or {})
        self.vocabulary = len(self._bytes)
        self.longest_token_chars = max((len(token.decode("utf-8", "replace")) for token in self._bytes), default=1)
        if (description.get("model") or {}).get("type") in _SHRINKING_MODELS:
            self.longest_token_chars = _UNBOUNDED_CHARS
        bos_id = self._special_aware.token_to_id(bos_token) if add_bos and bos_token else None
        if add_bos and bos_token and bos_id is None:
            raise BundleError(f"the bundle's bos_token {bos_token!r} is not in its tokenizer")
        self._prefix = prefix or (() if bos_id is None else (bos_id,))

    @classmethod
    def load(cls, folder: Path, spec: TextSpec) -> "Tokenizer":
        """Read the tokenizer of a bundle; BundleError says what is wrong with it."""
        path = folder / spec.tokenizer
        with reading(path):
            serialized = read_text(confined(folder, spec.tokenizer), TOKENIZER_BYTES)
        return cls(serialized, spec.bos_token, spec.add_bos, spec.writes.literals, spec.prefix)

    def encode(self, text: str, allow_special: bool) -> tuple[int, ...]:
        """Token ids of `text`, without BOS. Special tokens written in the text become control tokens only on request.
        InvalidRequest when the text is not Unicode (lone surrogates)."""
        instance = self._special_aware if allow_special else self._special_blind
        check_unicode(text)
        return tuple(instance.encode(text, add_special_tokens=False).ids)

    def encode_guarded(self, text: str, separator: str) -> tuple[int, ...]:
        """Token ids of `text` in which `separator` was put into every special token that must stay plain text. The
        whole special tokens are split off first, then the separator is removed from what lies between them."""
        check_unicode(text)
        ids: list[int] = []
        for number, (piece, is_special) in enumerate(self._split_specials(text)):
            blind = (number and self._blind_inside) or self._special_blind
            shown, instance = (piece, self._special_aware) if is_special else (piece.replace(separator, ""), blind)
            ids.extend(instance.encode(shown, add_special_tokens=False).ids)
        return tuple(ids)

    def with_bos(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Put BOS, or what the model has in its place, in front if it is not there already."""
        return ids if ids[: len(self._prefix)] == self._prefix else (*self._prefix, *ids)

    def decode(self, ids: tuple[int, ...], skip_special: bool = True) -> str:
        """Text of a whole sequence, without the space that encoding puts in front; no UTF-8 becomes U+FFFD."""
        shown = (i for i in ids if not (skip_special and i in self._hidden_ids))
        text = b"".join(map(self.token_bytes, shown)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._adds_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of one token; empty for an id the vocabulary does not have (models pad their embedding)."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def token_name(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token; empty for an id it does not have."""
        return self._special_aware.id_to_token(token_id) or ""

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def is_hidden(self, token_id: int) -> bool:
        """True for control tokens that are no text; what marks a part of an answer is text."""
        return token_id in self._hidden_ids

    def _split_specials(self, text: str) -> Iterator[tuple[str, bool]]:
        start = 0
        for match in self._special_pattern.finditer(text) if self._special_pattern else ():
            if match.start() > start:
                yield text[start : match.start()], False
            yield match.group(), True
            start = match.end()
        if start < len(text):
            yield text[start:], False


def check_unicode(text: str) -> None:
    """InvalidRequest for text with lone surrogates: it has no UTF-8 form."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"The text is not valid Unicode: lone surrogate at character {error.start}.") from None


def parsed(serialized: str) -> tokenizers.Tokenizer:
    """The library's tokenizer of a tokenizer.json. ValueError with the library's reason."""
    try:
        return tokenizers.Tokenizer.from_str(serialized)
    except BaseException as error:  # a panic of the library is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise ValueError(one_line(error)) from error


def _behind_the_first(pre_tokenizer: Any) -> Any:
    """The library's for pieces that do not begin a text, where those differ: some put a space before the first only."""
    written = json.dumps(pre_tokenizer)
    inner = written.replace('"prepend_scheme": "first"', '"prepend_scheme": "never"')
    empty = '{"added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}, "pre_tokenizer": %s}'
    return None if inner == written else parsed(empty % inner).pre_tokenizer


def _special_blind(
    aware: tokenizers.Tokenizer, description: Mapping[str, Any], pre_tokenizer: Any
) -> tokenizers.Tokenizer:
    """One for which a special token in a text is text. Both share the vocabulary, which is large. Unigram alone may
    find a special token among its pieces; the others have no merge or word that leads to one."""
    model, added = description.get("model") or {}, description.get("added_tokens") or []
    if model.get("type") == "Unigram":
        special = {token["content"] for token in added if token["special"]}
        pieces = [["" if piece in special else piece, score] for piece, score in model["vocab"]]
        plain = [token for token in added if not token["special"]]
        blind = parsed(json.dumps({**description, "added_tokens": plain, "model": {**model, "vocab": pieces}}))
    else:
        blind = tokenizers.Tokenizer(aware.model)
        blind.normalizer = aware.normalizer
        blind.add_tokens([token for _, token in sorted(aware.get_added_tokens_decoder().items())])
    blind.pre_tokenizer = pre_tokenizer
    blind.encode_special_tokens = True
    return blind


def _special_pattern(tokens: tuple[tokenizers.AddedToken, ...]) -> re.Pattern[str] | None:
    """Longest first, as the library matches; a token that strips takes the white space beside it along."""
    parts = [
        (r"\s*" if token.lstrip else "") + re.escape(token.content) + (r"\s*" if token.rstrip else "")
        for token in sorted(tokens, key=lambda token: -len(token.content))
        if token.content
    ]
    return re.compile("|".join(parts)) if parts else None


def _layout(decoder: Mapping[str, Any] | None) -> _Layout:
    kinds = [step.get("type") for step in (decoder or {}).get("decoders", [decoder or {}])]
    if "ByteLevel" in kinds:
        return _Layout.BYTE_LEVEL
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _Layout.SENTENCEPIECE
    if "WordPiece" in kinds:
        return _Layout.WORDPIECE
    raise BundleError(
        f"the tokenizer's decoder is {kinds or 'missing'}; implemented are ByteLevel, SentencePiece (ByteFallback) "
        "and WordPiece"
    )


def _adds_space(decoder: Mapping[str, Any]) -> bool:
    """Whether the decoder takes one space away from the beginning, because encoding put it there."""
    return any(
        (step.get("type") == "Strip" and step.get("content") == " " and bool(step.get("start")))
        or (step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        or step.get("type") == "WordPiece"
        for step in decoder.get("decoders", [decoder])
    )


def _token_table(vocabulary: Mapping[str, int], added: set[str], layout: _Layout) -> list[bytes]:
    largest = max(vocabulary.values(), default=-1)
    if largest > LARGEST_ID:
        raise BundleError(f"the tokenizer gives token id {largest}, {LARGEST_ID} is the largest that is possible")
    table = [b""] * (largest + 1)
    of_character = _byte_alphabet()
    for token, token_id in vocabulary.items():
        if token in added and layout is not _Layout.SENTENCEPIECE:
            table[token_id] = token.encode("utf-8")
        elif layout is _Layout.BYTE_LEVEL:
            table[token_id] = b"".join(of_character.get(c) or c.encode("utf-8") for c in token)
        elif layout is _Layout.WORDPIECE:
            goes_on = token.startswith(_WORD_GOES_ON)
            table[token_id] = (token[len(_WORD_GOES_ON) :] if goes_on else f" {token}").encode("utf-8")
        else:
            byte = _BYTE_TOKEN.fullmatch(token)
            plain = token.replace(_SPACE_MARK, " ").encode("utf-8")
            table[token_id] = bytes((int(byte.group(1), 16),)) if byte else plain
    return table


def _byte_alphabet() -> dict[str, bytes]:
    """GPT-2's stand-in characters: printable Latin-1 bytes stand for themselves, the others for U+0100 onwards."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in itself]
    places = [*((byte, byte) for byte in itself), *enumerate(others, 0x100)]
    return {chr(place): bytes((byte,)) for place, byte in places}
