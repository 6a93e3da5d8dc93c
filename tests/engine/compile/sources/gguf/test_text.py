"""Tokenizers of GGUF files beside the tokenizer.json they were made of."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from engine.bundle.specs import UsualSampling
from engine.compile.sources.gguf.vocabulary import TokenKind
from engine.compile.sources.text_files import write_text_files
from engine.demo.location import demo_folder
from engine.errors import CompileError, UnsupportedModel
from engine.text import tokenizer as served
from engine.text.renderer import ChatTemplate
from tests.engine.compile.sources.gguf.gguf_files import add_text
from tests.engine.compile.sources.gguf.vocabulary_files import TEXTS, byte_file, read

WORDS = " ".join(TEXTS) * 3
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA_3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_2 = LLAMA_3.replace("{1,3}", "")


def byte_level(split: str | None, *, digits: bool = False, composes: bool = False) -> Tokenizer:
    """A trained byte-level tokenizer with special tokens at its end, as model makers publish them."""
    tokenizer = Tokenizer(models.BPE())
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    if split is not None:
        steps.append(pre_tokenizers.Split(Regex(split), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if composes:
        tokenizer.normalizer = normalizers.NFC()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([WORDS], trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer


def checkpoint_text(folder: Path, tokenizer: Tokenizer, **settings: object) -> Path:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_text_gguf(
    path: Path, source: Path, vocab: int, pre: str, change: Callable[[gguf.GGUFWriter], None] | None = None
) -> Path:
    writer = gguf.GGUFWriter(path, "qwen2")
    add_text(writer, source, vocab, pre)
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


ORIGINALS: dict[str, Callable[[], Tokenizer]] = {
    "gpt-2": lambda: byte_level(None),
    "smollm": lambda: byte_level(None, digits=True),
    "qwen2": lambda: byte_level(QWEN_2, composes=True),
    "deepseek-r1-qwen": lambda: byte_level(QWEN_2),
    "smaug-bpe": lambda: byte_level(LLAMA_3),
}


@pytest.mark.parametrize("pre", ORIGINALS)
def test_ids_and_bytes_are_those_of_the_original(pre: str, tmp_path: Path) -> None:
    """With special tokens read as such and as plain text; the padding of the table stays without a text."""
    original = ORIGINALS[pre]()
    source = checkpoint_text(tmp_path / "source", original, eos_token="<|im_end|>")
    size = original.get_vocab_size() + 5
    _, ours = read(write_text_gguf(tmp_path / "m.gguf", source, size, pre), tmp_path / "out")
    wanted = served.Tokenizer((source / "tokenizer.json").read_text())
    assert ours.special_tokens == wanted.special_tokens
    for text in (*TEXTS, WORDS):
        for allow_special in (True, False):
            assert ours.encode(text, allow_special) == wanted.encode(text, allow_special), text
        assert ours.decode(ours.encode(text, True), skip_special=False) == wanted.decode(
            wanted.encode(text, True), skip_special=False
        )
    assert [ours.token_bytes(i) for i in range(size)] == [wanted.token_bytes(i) for i in range(size)]


def test_the_demo_model_keeps_its_tokenizer_template_and_ends(tmp_path: Path) -> None:
    """A real template with tools and reasoning, nine added tokens at the front."""
    path = write_text_gguf(tmp_path / "m.gguf", demo_folder(), 3072, "qwen2")
    spec, ours = read(path, tmp_path / "out")
    (tmp_path / "folder").mkdir()
    config = json.loads((demo_folder() / "config.json").read_text())
    assert spec == write_text_files(demo_folder(), tmp_path / "folder", config, 3072)
    assert spec.chat_template is not None
    assert (tmp_path / "out" / spec.chat_template).read_text() == (tmp_path / "folder" / spec.chat_template).read_text()
    wanted = served.Tokenizer((demo_folder() / "tokenizer.json").read_text())
    assert [ours.token_bytes(i) for i in range(3072)] == [wanted.token_bytes(i) for i in range(3072)]
    for text in TEXTS[:2] + TEXTS[3:]:  # this vocabulary was made without composing characters
        assert ours.encode(text, True) == wanted.encode(text, True)


def test_how_a_file_advises_to_sample(tmp_path: Path) -> None:
    """By the keys that llama.cpp's converter writes."""

    def advise(writer: gguf.GGUFWriter) -> None:
        writer.add_sampling_temp(0.5)
        writer.add_sampling_top_k(20)
        writer.add_sampling_top_p(0.75)
        writer.add_sampling_min_p(0.25)
        writer.add_sampling_penalty_repeat(1.25)

    size = byte_level(None).get_vocab_size()
    source = checkpoint_text(tmp_path / "source", byte_level(None))
    spec, _ = read(write_text_gguf(tmp_path / "m.gguf", source, size, "gpt-2", advise), tmp_path / "out")
    assert spec.sampling == UsualSampling(0.5, 20, 0.75, 0.25, 1.25)


@pytest.mark.parametrize(
    ("begins", "ends"), [(False, True), (True, True), (True, False), (False, False)], ids=["end", "both", "begin", "no"]
)
def test_the_tokens_that_a_file_puts_around_a_text_are_kept(begins: bool, ends: bool, tmp_path: Path) -> None:
    """As llama.cpp reads `add_bos_token` and `add_eos_token`: each of two texts has them."""
    source = checkpoint_text(
        tmp_path / "source", byte_level(None), bos_token="<|im_start|>", eos_token="<|im_end|>", add_bos_token=begins
    )
    path = tmp_path / "m.gguf"
    size = byte_level(None).get_vocab_size()
    write_text_gguf(path, source, size, "gpt-2", lambda writer: writer.add_add_eos_token(ends))
    begin, end, a, b = (byte_level(None).encode(text).ids for text in ("<|im_start|>", "<|im_end|>", "a", "b"))
    before, behind = begin if begins else [], end if ends else []
    read(path, tmp_path / "out")
    made = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert made.encode("a").ids == [*before, *a, *behind]
    assert made.encode("a", "b").ids == [*before, *a, *behind, *before, *b, *behind]


def test_llama_3_takes_whole_tokens_and_begins_with_bos(tmp_path: Path) -> None:
    """A piece that is a token needs no merges; BOS is the pre-tokenizer's habit where the file is silent."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "ab", "abc", "Ġabc", "<|begin_of_text|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [int(TokenKind.CONTROL)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(len(tokens) - 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    spec, ours = read(tmp_path / "m.gguf", tmp_path / "out")
    assert [ours.token_name(i) for i in ours.encode("abc abc abcd", False)] == ["abc", "Ġabc", "Ġ", "ab", "c", "d"]
    assert spec.add_bos and ours.with_bos(())[0] == len(tokens) - 1


def spm_pieces(text: str, scores: dict[str, float]) -> list[str]:
    """The definition: of all neighbours that make a piece, the best score is joined, the first one first."""
    pieces = list(text)
    while True:
        joined = ["".join(pair) for pair in pairwise(pieces)]
        best = max((scores[piece] for piece in joined if piece in scores), default=None)
        if best is None:
            break
        at = next(index for index, piece in enumerate(joined) if scores.get(piece) == best)
        pieces[at : at + 2] = [joined[at]]
    found = []
    for piece in pieces:
        found += [piece] if piece in scores else [f"<0x{byte:02X}>" for byte in piece.encode()]
    return found


@pytest.mark.parametrize("has_prefix", [True, False])
def test_sentencepiece_joins_the_best_scores_first(has_prefix: bool, tmp_path: Path) -> None:
    words = [*("▁the", "▁then", "he", "en", "th", "▁t", "▁th", "her", "▁her", "here", "ll", "lo", "▁lo", "el", "ello")]
    words += ["▁hello", "12", "23", "123", "▁1", "▁▁", "▁▁▁", "é", "▁é", "ng", "ing", "▁ing"]
    letters = sorted(set("abcdefghijklmnopqrstuvwxyzé0123456789.,'!▁") - {"q"})
    normal = [*words, *(letter for letter in letters if letter not in words)]
    scores = {token: -float(index) for index, token in enumerate(normal)}
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [int(TokenKind.UNKNOWN), *[int(TokenKind.CONTROL)] * 2, *[int(TokenKind.BYTE)] * 256, *[1] * len(normal)]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*first, *normal])
    writer.add_token_scores([0.0] * len(first) + list(scores.values()))
    writer.add_token_types(kinds)
    writer.add_add_space_prefix(has_prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    spec, ours = read(tmp_path / "m.gguf", tmp_path / "out")
    assert (spec.bos_token, spec.eos_token, spec.add_bos) == ("<s>", "</s>", True)
    assert spec.stop_ids == (2,)
    for text in (
        "then the here 12345",
        "  hello  there   ",
        "naïve queue é 日本 🙂",
        "singing!",
        "</s> <s>the",
        "a\nb",
    ):
        spaced = ("▁" if has_prefix else "") + text.replace(" ", "▁")
        assert [ours.token_name(i) for i in ours.encode(text, False)] == spm_pieces(spaced, scores), text
        assert ours.decode(ours.encode(text, False)) == text
    ids = ours.encode("<s>hello</s>the", True)
    assert (ids[0], ours.decode(ids, skip_special=False).replace(" ", "")) == (1, "<s>hello</s>the")


@pytest.mark.parametrize(
    ("marks", "ends"),
    [
        (["<|end|>"], ["<|end|>"]),
        (["<|channel|>", "<|end|>", "<|call|>", "<|return|>"], ["<|call|>", "<|return|>"]),
        (["<|turn>", "<turn|>"], ["<turn|>"]),
        (["<|user|>", "<|observation|>"], ["<|observation|>"]),
    ],
    ids=["Phi 3", "gpt-oss", "Gemma 4", "GLM 4"],
)
def test_control_tokens_that_end_an_answer(marks: list[str], ends: list[str], tmp_path: Path) -> None:
    """As each family's generation_config.json has them; its files name one end. gpt-oss ends a thought with <|end|>."""
    tokens = ["a", "b", "ab", *marks]
    byte_file(tokens=tokens, token_type=[1, 1, 1, *[int(TokenKind.CONTROL)] * len(marks)])(tmp_path / "m.gguf")
    spec, _ = read(tmp_path / "m.gguf", tmp_path / "out")
    assert [tokens[end] for end in spec.stop_ids] == ends


@pytest.mark.parametrize("architecture", ["phi3", "llama"])
def test_special_tokens_of_phi_3_take_the_space_behind_them_along(architecture: str, tmp_path: Path) -> None:
    """As its tokenizer.json says and no GGUF file does."""
    normal, special = ["▁", "h", "i", "▁h", "▁hi"], ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|user|>"]
    kinds = [int(TokenKind.UNKNOWN), *[int(TokenKind.CONTROL)] * 4, int(TokenKind.BYTE), *[1] * len(normal)]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", architecture)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, "<0x0A>", *normal])
    writer.add_token_scores([-float(index) for index in range(len(kinds))])
    writer.add_token_types(kinds)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    _, ours = read(tmp_path / "m.gguf", tmp_path / "out")
    line = [] if architecture == "phi3" else ["▁", "<0x0A>"]
    hi = ["▁hi"] if architecture == "phi3" else ["h", "i"]
    for text, behind in (("<|user|>\nhi", [*line, *hi]), ("<|endoftext|>\n", ["▁", "<0x0A>"])):
        names = [ours.token_name(i) for i in ours.encode(text, True)]
        assert names[1:] == behind
        assert names == [ours.token_name(i) for i in ours.encode_guarded(text, "\ue000")]


@pytest.mark.parametrize("names", [("default", "tool_use"), ("tool_use",), ("default", "rag")])
def test_a_template_for_tools(names: tuple[str, ...], tmp_path: Path) -> None:
    """As llama.cpp takes it: where there are tools, and where there is no other."""
    source = checkpoint_text(tmp_path / "source", byte_level(None))
    path, texts = tmp_path / "m.gguf", [{"name": name, "template": name} for name in names]
    size = byte_level(None).get_vocab_size()
    write_text_gguf(path, source, size, "gpt-2", lambda writer: writer.add_chat_template(texts))
    spec, _ = read(path, tmp_path / "out")
    assert spec.chat_template is not None
    template = ChatTemplate((tmp_path / "out" / spec.chat_template).read_text())
    with_tools, without = (template.render([], tools, {}, 100) for tools in ([{}], None))
    assert with_tools == ("tool_use" if "tool_use" in names else "default")
    assert without == ("default" if "default" in names else "tool_use")


def test_merges_that_make_no_token_are_left_out(tmp_path: Path) -> None:
    byte_file(merges=["b a", "a c", "a b"])(tmp_path / "m.gguf")
    _, ours = read(tmp_path / "m.gguf", tmp_path / "out")
    assert ours.encode("abab", False) == (2, 2)


REFUSED = {
    "no tokens": (byte_file(tokens=None), "has no tokenizer"),
    "another model": (byte_file(model="rwkv"), "tokenizer 'rwkv' is not supported"),
    "another pre-tokenizer": (byte_file(pre="whitespace"), "pre-tokenizer 'whitespace' is not supported"),
    "no pre-tokenizer": (byte_file(pre=None), "names no pre-tokenizer"),
    "tokens of numbers": (byte_file(tokens=[1, 2]), "must be an array of strings"),
    "few kinds": (byte_file(token_type=[1]), "must be an array of 3 numbers"),
    "kinds that are no integers": (byte_file(token_type=[1.5, 1.0, 1.0]), "must be an array of 3 numbers"),
    "a token twice": (byte_file(tokens=["a", "b", "a"]), "token 'a' twice"),
    "a merge of three": (byte_file(merges=["a b c"]), "is no pair"),
    "an end that is no token": (byte_file(eos_token_id=3), "must be a token id below 3"),
    "more tokens than rows": (byte_file(tokens=["a", "b", "ab", "c", "d"], token_type=None), "has 4 rows"),
    "no merges": (byte_file(merges=None), "no merges"),
    "no scores": (byte_file(model="llama"), "no scores"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    write, reason = REFUSED[case]
    write(tmp_path / "m.gguf")
    with pytest.raises((CompileError, UnsupportedModel), match=reason) as caught:
        read(tmp_path / "m.gguf", tmp_path / "out", vocab=4)
    assert "\n" not in str(caught.value)
