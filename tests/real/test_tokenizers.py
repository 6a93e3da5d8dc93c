"""Vocabularies of published models as GGUF files: the ids that llama.cpp keeps beside them, and the text back."""

import re
import unicodedata
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.bundle.manifest import TextSpec
from engine.compile.sources.gguf.header import read_header
from engine.compile.sources.gguf.tokenizers import write_gguf_text
from engine.compile.sources.gguf.vocabulary import PRE_TOKENIZERS, pre_tokenizer
from engine.errors import UnsupportedModel
from engine.text import tokenizer as served
from tests.engine.compile.sources.gguf.vocabulary_files import TEXTS, read

SEPARATOR = "\n__ggml_vocab_test__\n"
BYTE_LEVEL = (
    *("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "mpt", "qwen2", "qwen35"),
    *("refact", "starcoder"),
)
SENTENCEPIECE = ("gemma-4", "llama-spm", "phi-3")
WITH_IDS = (*BYTE_LEVEL, *SENTENCEPIECE, "bert-bge")
COMPOSED = ("command-r", "mpt", "qwen2")
UNREAD = {"whitespace"}  # refused
# Tokens that the files themselves, or the families where they are silent, put around a text.
AROUND = {
    "command-r": ("<BOS_TOKEN>", None),
    "deepseek-coder": ("<｜begin▁of▁sentence｜>", None),
    "deepseek-llm": ("<｜begin▁of▁sentence｜>", None),
    "gemma-4": ("<bos>", None),
    "llama-bpe": ("<|begin_of_text|>", None),
    "llama-spm": ("<s>", None),
    "phi-3": ("<s>", None),
    "bert-bge": ("[CLS]", "[SEP]"),
}
XLM_ROBERTA = {
    "Hello world": (35378, 8999),
    "  two  spaces ": (6626, 32628, 7),
    "日本語のテキスト ﬁ Ⅷ ½": (6, 98449, 154, 193508, 809, 32896, 78660),
    "Größe, naïve café e\u0301": (66461, 4, 24, 9392, 272, 26216, 393),
    "🙂 it's 12345\n\tdone": (3143, 442, 25, 7, 427, 96060, 16940),
    "हिन्दी العربية ไทย": (66997, 15073, 6, 7034),
    "\u00a0\u3000x\u200by": (1022, 113),
}


@dataclass(frozen=True)
class Published:
    """A vocabulary as the server reads it, and the tokenizer.json that it reads."""

    name: str
    spec: TextSpec
    ours: served.Tokenizer
    library: Tokenizer


@pytest.fixture(scope="module")
def published(
    request: pytest.FixtureRequest, llama_cpp_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Published:
    folder = tmp_path_factory.mktemp(request.param)
    spec, ours = read(vocabulary(llama_cpp_models, request.param), folder)
    return Published(request.param, spec, ours, Tokenizer.from_file(str(folder / "tokenizer.json")))


def vocabulary(folder: Path, name: str) -> Path:
    return folder / f"ggml-vocab-{name}.gguf"


def texts_of(folder: Path, name: str) -> list[str]:
    return (folder / f"ggml-vocab-{name}.gguf.inp").read_bytes().decode().split(SEPARATOR)


@pytest.mark.parametrize("published", WITH_IDS, indirect=True)
def test_ids_are_those_that_are_expected(published: Published, llama_cpp_models: Path) -> None:
    """Every text of the file, whether special tokens are read as such or not."""
    texts = texts_of(llama_cpp_models, published.name)
    lines = (llama_cpp_models / f"ggml-vocab-{published.name}.gguf.out").read_text().split("\n")
    assert len(texts) >= 46
    for text, line in zip_longest(texts, lines, fillvalue=""):
        for allow_special in (False, True):
            assert published.ours.encode(text, allow_special) == tuple(map(int, line.split())), text


@pytest.mark.parametrize("published", (*BYTE_LEVEL, *SENTENCEPIECE), indirect=True)
def test_the_text_comes_back(published: Published, llama_cpp_models: Path) -> None:
    for text in (*texts_of(llama_cpp_models, published.name), *TEXTS):
        wanted = unicodedata.normalize("NFC", text) if published.name in COMPOSED else text
        ids = published.ours.encode(text, allow_special=False)
        assert published.ours.decode(ids, skip_special=False) == wanted


@pytest.mark.parametrize("published", WITH_IDS, indirect=True)
def test_a_text_has_the_tokens_around_it_that_the_file_wants(published: Published) -> None:
    before, behind = AROUND.get(published.name, (None, None))
    tokens = published.library.encode("hello").tokens
    assert published.spec.add_bos is (before is not None)
    if before is not None:
        assert published.spec.bos_token == tokens.pop(0) == before
    if behind is not None:
        assert published.spec.eos_token == tokens.pop() == behind
    plain = published.ours.encode("hello", allow_special=False)
    assert tokens == [published.ours.token_name(identifier) for identifier in plain]


@pytest.mark.parametrize("published", ["phi-3"], indirect=True)
def test_phi_3_reads_no_line_behind_a_special_token(published: Published) -> None:
    """Ids of its own tokenizer.json, and of llama.cpp."""
    text = "<|user|>\nHi there<|end|>\n<|assistant|>\n"
    assert published.ours.encode(text, allow_special=True) == (32010, 6324, 727, 32007, 32001)


@pytest.mark.parametrize("published", ["nomic-bert-moe"], indirect=True)
def test_xlm_roberta_reads_as_sentencepiece_does(published: Published) -> None:
    """Unigram with its map of characters; ids of sentencepiece 0.2.3 with the same pieces, scores and map."""
    for text, ids in XLM_ROBERTA.items():
        assert published.ours.encode(text, allow_special=False) == ids
    assert published.library.encode("Hello world").ids == [0, *XLM_ROBERTA["Hello world"], 2]
    assert (published.spec.bos_token, published.spec.eos_token) == ("<s>", "</s>")
    assert published.ours.decode(XLM_ROBERTA["Hello world"]) == "Hello world"


@pytest.mark.parametrize("name", ["aquila", "gpt-neox"])
def test_a_file_that_does_not_say_where_it_cuts_is_refused(name: str, llama_cpp_models: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="names no pre-tokenizer"):
        write_gguf_text(read_header(vocabulary(llama_cpp_models, name)), tmp_path, 1 << 20)


def test_pre_tokenizers_that_llama_cpp_names_are_read_or_refused_by_name(llama_cpp_models: Path) -> None:
    """Every name that its reader of files compares with."""
    source = (llama_cpp_models.parent / "src" / "llama-vocab.cpp").read_text(encoding="utf-8")
    named = set(re.findall(r'tokenizer_pre == "([^"]+)"', source))
    assert len(named) > 80
    for name in named - PRE_TOKENIZERS.keys():
        with pytest.raises(UnsupportedModel, match=re.escape(f"pre-tokenizer '{name}' is not supported")):
            pre_tokenizer("m.gguf", name)
    assert named - PRE_TOKENIZERS.keys() == UNREAD
    assert PRE_TOKENIZERS.keys() <= named
