"""The tokenizer against the `tokenizers` library and against plain UTF-8."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from engine.bundle.manifest import TextSpec
from engine.errors import BundleError, InvalidRequest
from engine.text.tokenizer import Tokenizer
from tests.engine.tiny_bundle import SPECIALS, byte_level_tokenizer
from tests.tiny_encoder import wordpiece

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NASTY = st.lists(st.sampled_from([*SPECIALS, "<|im_", "end|>", "<think>", "he", "ll", "ना", "👩‍👩‍👧", " ", "\n"])).map(
    "".join
)
BYTE_LEVEL = byte_level_tokenizer()
TOKENIZER = Tokenizer(BYTE_LEVEL.to_str())


def sentencepiece_tokenizer() -> tokenizers.Tokenizer:
    """Llama 2's layout: U+2581 for a space, <0x..> for a byte, a space put in front of the text."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    for token in ("\u2581", "h", "i", "\u2581h", "\u2581hi", "é"):
        vocabulary[token] = len(vocabulary)
    merges = [("\u2581", "h"), ("\u2581h", "i")]
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


SENTENCEPIECE = sentencepiece_tokenizer()
PIECES = Tokenizer(SENTENCEPIECE.to_str(), bos_token="<s>", add_bos=True)


@given(TEXT | NASTY)
def test_bytes_of_the_tokens_are_the_bytes_of_the_text(text: str) -> None:
    for allow_special in (True, False):
        ids = TOKENIZER.encode(text, allow_special)
        assert b"".join(map(TOKENIZER.token_bytes, ids)) == text.encode()
        assert (
            TOKENIZER.decode(ids, skip_special=False) == BYTE_LEVEL.decode(list(ids), skip_special_tokens=False) == text
        )


@given(TEXT | NASTY)
def test_sentencepiece_bytes_are_the_text_behind_one_space(text: str) -> None:
    text = text.replace("\u2581", "")
    ids = PIECES.encode(text, allow_special=False)
    assert b"".join(map(PIECES.token_bytes, ids)).decode() == (" " + text if text else "")
    assert PIECES.decode(ids) == SENTENCEPIECE.decode(list(ids)) == text


@given(st.lists(st.integers(0, TOKENIZER.vocabulary - 1)))
def test_decode_is_the_librarys(ids: list[int]) -> None:
    for skip in (True, False):
        assert TOKENIZER.decode(tuple(ids), skip) == BYTE_LEVEL.decode(ids, skip_special_tokens=skip)


@given(NASTY)
def test_special_tokens_only_on_request(text: str) -> None:
    assert list(TOKENIZER.encode(text, allow_special=True)) == BYTE_LEVEL.encode(text, add_special_tokens=False).ids
    assert not any(map(TOKENIZER.is_special, TOKENIZER.encode(text, allow_special=False)))


def test_unigram_has_no_piece_for_a_special_token_in_plain_text() -> None:
    """The library finds `</s>` among the pieces even where special tokens are to be text."""
    pieces = [("<s>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((letter, -5.0) for letter in "\u2581</s>hi")]
    library = tokenizers.Tokenizer(models.Unigram(pieces, 2))
    library.normalizer = normalizers.Replace(" ", "\u2581")
    library.decoder = decoders.Metaspace()
    library.add_special_tokens(["<s>", "</s>", "<unk>"])
    library.add_tokens([AddedToken("hi", normalized=False)])
    ours = Tokenizer(library.to_str())
    assert [ours.token_name(i) for i in ours.encode("hi </s>", allow_special=False)] == ["hi", *"\u2581</s>"]
    assert ours.encode("hi </s>", allow_special=True) == tuple(library.encode("hi </s>").ids)


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_the_space_that_metaspace_puts_in_front_is_taken_away(scheme: str) -> None:
    library = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), *((letter, -5.0) for letter in "\u2581hi")], 0))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    library.decoder = decoders.Metaspace(prepend_scheme=scheme)
    ours = Tokenizer(library.to_str())
    for text in ("hi hi", " hi"):
        ids = ours.encode(text, allow_special=False)
        assert list(ids) == library.encode(text).ids
        assert ours.decode(ids) == library.decode(list(ids))


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_guarded_text_is_tokenised_as_it_stands(scheme: str, is_alone: bool) -> None:
    letters = ["<unk>", "</s>", *"\u2581hi>"]
    bpe = models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[], unk_token="<unk>")
    unigram = models.Unigram([(letter, -float(number)) for number, letter in enumerate(letters)], 0)
    space = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    for model in (bpe, unigram):
        library = tokenizers.Tokenizer(model)
        library.pre_tokenizer = space if is_alone else pre_tokenizers.Sequence([space])
        library.decoder = decoders.Metaspace()
        library.add_special_tokens(["<unk>", "</s>"])
        ours = Tokenizer(library.to_str())
        for text in ("hi</s>hi</s> hi", "</s>hi</s>", " hi</s>hi h</s></s>i"):
            assert list(ours.encode_guarded(text, "\ue000")) == library.encode(text).ids
            assert ours.encode_guarded(f"{text}>\ue000", "\ue000") == ours.encode(f"{text}>", allow_special=True)


@given(TEXT | NASTY)
def test_a_token_never_stands_for_more_characters_than_said(text: str) -> None:
    for tokenizer in (TOKENIZER, PIECES):
        assert len(text) <= tokenizer.longest_token_chars * len(tokenizer.encode(text, allow_special=True))


def test_bos_is_never_doubled() -> None:
    assert PIECES.with_bos(PIECES.encode("hi", True))[:2] == (1, PIECES.encode("hi", True)[0])
    assert PIECES.with_bos(PIECES.encode("<s>hi", True)).count(1) == 1
    assert PIECES.with_bos(()) == (1,)
    assert TOKENIZER.with_bos((104,)) == (104,)


def test_a_model_that_has_a_bos_need_not_want_it() -> None:
    assert Tokenizer(SENTENCEPIECE.to_str(), bos_token="<s>").with_bos((5,)) == (5,)


def test_a_post_processor_adds_no_tokens_of_its_own() -> None:
    made = byte_level_tokenizer()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", made.token_to_id("<|im_start|>"))]
    )
    assert Tokenizer(made.to_str()).encode("x", allow_special=True) == (ord("x"),)


def test_truncation_and_padding_of_the_file_are_switched_off() -> None:
    made = byte_level_tokenizer()
    made.enable_truncation(2)
    made.enable_padding(length=8)
    assert len(Tokenizer(made.to_str()).encode("abcd", allow_special=True)) == 4


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff"])
def test_lone_surrogates_are_the_callers_fault(text: str) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        TOKENIZER.encode(text, allow_special=True)


def test_ids_outside_the_vocabulary_have_no_bytes() -> None:
    assert TOKENIZER.token_bytes(TOKENIZER.vocabulary) == TOKENIZER.token_bytes(-1) == b""
    assert not TOKENIZER.is_special(10**9)


def test_special_tokens_with_strips_take_white_space_along() -> None:
    made = byte_level_tokenizer()
    made.add_special_tokens([AddedToken("[X]", lstrip=True, rstrip=True, special=True)])
    tokenizer = Tokenizer(made.to_str())
    text = "a  [X] \nb<\ue000|im_end|>"
    plain = "a  [X] \nb"
    assert tokenizer.encode_guarded(text, "\ue000")[:3] == tuple(made.encode(plain).ids)


@pytest.mark.parametrize(
    "decoder", [None, {"type": "CTC", "pad_token": "_", "word_delimiter_token": "|", "cleanup": True}]
)
def test_other_layouts_are_refused_by_name(decoder: dict[str, object] | None) -> None:
    content = json.loads(BYTE_LEVEL.to_str())
    content["decoder"] = decoder
    with pytest.raises(BundleError, match="CTC" if decoder else "decoder"):
        Tokenizer(json.dumps(content))


def test_what_cannot_be_read_is_a_bundle_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        Tokenizer("{}")
    with pytest.raises(BundleError, match="cannot be read"):
        Tokenizer("not json")
    with pytest.raises(BundleError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path, TextSpec("tokenizer.json", None, ()))
    with pytest.raises(BundleError, match="bos_token"):
        Tokenizer(BYTE_LEVEL.to_str(), bos_token="<nowhere>", add_bos=True)


def test_wordpiece_tokens_and_their_text() -> None:
    """As the library has it, but for the spaces before punctuation; nothing is cut or padded."""
    library = wordpiece()
    pieces = Tokenizer(library.to_str())
    library.no_truncation()
    library.no_padding()
    text = "The cat sat: on 9 dogs, singing and singing again and again"
    ids = pieces.encode(text, allow_special=False)
    assert list(ids) == library.encode(text, add_special_tokens=False).ids
    assert len(ids) > 12
    assert pieces.decode(ids).replace(" ", "") == text.lower().replace(" ", "")
    assert pieces.token_bytes(library.token_to_id("cat")) == b" cat"
    assert pieces.token_bytes(library.token_to_id("##s")) == b"s"
    assert pieces.decode((library.token_to_id("[CLS]"), *ids[:2])) == "the cat"


def test_no_length_of_a_text_tells_how_many_tokens_wordpiece_makes_of_it() -> None:
    """White space is no token, and a word of any length is one that is unknown."""
    pieces = Tokenizer(wordpiece().to_str())
    text = " " * 10_000 + "\u4e00" * 5 + "x" * 10_000
    assert len(text) <= len(pieces.encode(text, allow_special=False)) * pieces.longest_token_chars


def test_a_space_of_an_added_token_is_a_space() -> None:
    """As Gemma's runs of spaces, which text never holds as the vocabulary spells them."""
    made = tokenizers.Tokenizer(models.BPE({"▁": 0, "▁▁": 1, "x": 2}, [("▁", "▁")], byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_tokens([AddedToken("▁▁", normalized=False, special=False)])
    ours = Tokenizer(made.to_str())
    ids = ours.encode("  x", allow_special=True)
    assert ids == (1, 2)
    assert b"".join(map(ours.token_bytes, ids)).decode() == ours.decode(ids) == made.decode(list(ids)) == "  x"
