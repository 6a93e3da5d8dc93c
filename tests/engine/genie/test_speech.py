"""A Whisper's folder of AI Hub: every layout, words with and without a tokenizer, and what is missing by its name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.bundle.manifest import GraphKind
from engine.errors import BundleError
from engine.genie.speech import is_hub_speech, read_hub_speech, words_of
from engine.runtime.qnn.binary import BinaryGraph, BinaryInfo, BinaryTensor, QnnEncoding
from engine.sources.resolve import models_in
from tests.tiny_whisper import FRAMES, MELS, POSITIONS, SPOKEN, START, VOCAB, write_tokenizer

BUILD = "v2.40.0.1"
LAYOUTS = ["{}.bin", "{}_onnx/{}.bin"]
CODES = QnnEncoding((0.5,), (-128,))


def tensor(name: str, *shape: int, dtype: str = "float16", encoding: QnnEncoding | None = None) -> BinaryTensor:
    return BinaryTensor(name, dtype, shape, encoding=encoding)


def graphs(places: int = 199, dtype: str = "float16", logits: str = "logits") -> dict[str, BinaryGraph]:
    """Two layers of four heads of 8 numbers, as the contract of qai-hub-models has them."""
    encoding = CODES if dtype == "uint8" else None
    cross, old, new = [], [], []
    for layer in range(2):
        for side, shape in (("k", (8, POSITIONS)), ("v", (POSITIONS, 8))):
            cross.append(tensor(f"{side}_cache_cross_{layer}", 4, 1, *shape, dtype=dtype, encoding=encoding))
        for side, shape in (("k", (8, places)), ("v", (places, 8))):
            for suffix, found in (("in", old), ("out", new)):
                name = f"{side}_cache_self_{layer}_{suffix}"
                found.append(tensor(name, 4, 1, *shape, dtype=dtype, encoding=encoding))
    rows = [tensor("input_ids", 1, 1, dtype="int32"), tensor("attention_mask", 1, 1, 1, places + 1)]
    last = tensor("position_ids", 1, dtype="int32")
    return {
        "encoder": BinaryGraph("graph_a", (tensor("input_features", 1, MELS, FRAMES),), tuple(cross)),
        "decoder": BinaryGraph("graph_b", (*rows, *old, *cross, last), (tensor(logits, 1, VOCAB, 1, 1), *new)),
    }


def write(folder: Path, layout: str = "{}.bin", words: str = "vocab.bin") -> Path:
    for part in ("encoder", "decoder"):
        path = folder / layout.replace("{}", part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"graphs")
    chip = {"soc_model": 88, "htp_version": 81}
    (folder / "metadata.json").write_text(json.dumps({"precision": "float", "chipset_attributes": chip}))
    if words == "vocab.bin":
        (folder / words).write_bytes(b"".join(word + b"\0" for word in SPOKEN))
    elif words:
        write_tokenizer(folder)
    return folder


def describing(found: dict[str, BinaryGraph]) -> Callable[[Path], BinaryInfo]:
    return lambda path: BinaryInfo(BUILD, (found[path.stem],))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("words", ["vocab.bin", "tokenizer.json"])
def test_both_layouts_and_both_kinds_of_words(layout: str, words: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "whisper", layout, words)
    assert is_hub_speech(folder)
    assert [(model.name, model.is_bundle) for model in models_in(tmp_path)[0]] == [("whisper", False)]
    found = read_hub_speech(folder, describing(graphs())).manifest
    assert (found.name, found.target, found.quant, found.max_context) == ("whisper", "x2-elite", "float", 200)
    assert (found.model.layers, found.model.kv_heads, found.model.head_dim, found.model.vocab) == (2, 4, 8, VOCAB)
    assert [graph.kind for graph in found.graphs] == [GraphKind.SPEECH_ENCODER, GraphKind.SPEECH_DECODER]
    assert found.npu is not None and found.npu.chains["decoder"] == (("decoder.bin", "graph_b"),)
    assert (found.npu.sdk, found.versions) == (BUILD, {"qnn": BUILD})
    assert found.speech is not None and (found.speech.start, found.speech.frames) == (START, FRAMES)
    assert len(found.speech.languages) == 3


def test_caches_of_codes_keep_their_scale(tmp_path: Path) -> None:
    found = read_hub_speech(write(tmp_path), describing(graphs(dtype="uint8"))).manifest
    cache = next(item for item in found.graphs[1].inputs if item.name == "v_cache_self_1_in")
    assert (found.kv_dtype, cache.scale, cache.zero_point) == ("uint8", 0.5, 128)


def test_the_word_that_is_a_zero_byte_has_no_end() -> None:
    assert words_of(b"a\0b\0\0cd\0") == [b"a", b"b", b"\0", b"cd"]


def other_graphs(graphs: dict[str, BinaryGraph]) -> dict[str, BinaryGraph]:
    return {**graphs, "encoder": graphs["decoder"]}


@pytest.mark.parametrize(
    ("found", "words", "message"),
    [
        (graphs(), "", "has the binaries of a Whisper and no words: put its tokenizer.json or vocab.bin there"),
        (graphs(logits="scores"), "vocab.bin", "no Whisper's: they have no tensor logits"),
        (other_graphs(graphs()), "vocab.bin", "they have no tensor input_features"),
    ],
)
def test_what_is_missing_is_named(found: dict[str, BinaryGraph], words: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=message):
        read_hub_speech(write(tmp_path, words=words), describing(found))


def test_words_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "vocab.bin").write_bytes(b"a\0a\0")
    with pytest.raises(BundleError, match=r"vocab\.bin is damaged: it has a word twice"):
        read_hub_speech(folder, describing(graphs()))


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, words="tokenizer.json")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(BundleError, match=r"tokenizer\.json is not a tokenizer"):
        read_hub_speech(folder, describing(graphs()))
