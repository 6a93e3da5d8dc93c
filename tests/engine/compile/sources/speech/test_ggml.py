"""A file of whisper.cpp: the network and the weights of the checkpoint it was made of, and files that are damaged."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from engine.bundle.manifest import Manifest, load_manifest
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.sources.speech.ggml import GgmlReader
from engine.compile.sources.speech.source import is_speech, open_speech
from engine.errors import CompileError, UnsupportedModel
from engine.sources.resolve import models_in
from tests.ggml_whisper import write_tiny_ggml as write
from tests.tiny_whisper import write_folder
from tools.speech.ggml import F16, F32

Q8_0, Q5_0 = GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q5_0


def compiled(source: Path, output: Path) -> Manifest:
    compile_bundle(CompileArguments(source, output, quant=Quant.FP32, name="m"), SilentProgress())
    return load_manifest(output)


def test_weights_and_graphs_are_those_of_the_folder(tmp_path: Path) -> None:
    expected = compiled(write_folder(tmp_path / "folder"), tmp_path / "expected")
    found = compiled(write(tmp_path / "ggml-tiny.bin"), tmp_path / "found")
    assert found.model == expected.model
    names = {"weights.bin", *(graph.file for graph in found.graphs if graph.kind != "alignment")}
    assert {found.files[name].sha256 == expected.files[name].sha256 for name in names if "align" not in name} == {True}
    assert found.speech is not None and tuple(found.speech.languages) == ("en", "zh", "de")
    assert found.speech.alignment == tuple((1, head) for head in range(4)), "the upper half of the layers"


@pytest.mark.parametrize("kind", [F16, Q8_0, Q5_0])
def test_matrices_in_other_types_are_near(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    name, shape = "model.decoder.layers.1.fc1.weight", (64, 32)
    files = [write(tmp_path / f"{each.name}.bin", each) for each in (F32, kind)]
    values = []
    for file in files:
        with open_speech(file) as source:
            values.append(source.checkpoint.tensor(name, shape))
            assert (source.checkpoint.rows(name, 3, 5) == values[-1][3:5]).all()
    assert 0 < np.abs(values[0] - values[1]).max() < {F16: 1e-3, Q8_0: 0.01, Q5_0: 0.1}[kind]


def test_a_text_is_cut_as_the_words_say(tmp_path: Path) -> None:
    words = [bytes((byte,)) for byte in range(33, 33 + 90)] + [
        b" ",
        b"at",
        b" c",
        b" cat",
        *(b"%d~" % n for n in range(6)),
    ]
    with open_speech(write(tmp_path / "m.bin", words=words)) as source:
        assert source.tokenizer is not None
        found = source.tokenizer.encode("a cat", add_special_tokens=False)
    assert found.tokens == ["a", "Ġcat"]
    assert source.tokenizer.decode(found.ids) == "a cat"


@pytest.mark.parametrize(("told", "count"), [({}, 3), ({"is_multilingual": False}, 0), ({"is_multilingual": True}, 3)])
def test_a_model_of_english_alone_is_told_no_language(told: dict[str, bool], count: int, tmp_path: Path) -> None:
    """It has the tokens of languages all the same."""
    folder = write_folder(tmp_path / "folder")
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | told))
    with open_speech(folder) as source:
        assert len(source.write_text(tmp_path)[1].languages) == count


def test_it_is_found_among_models(tmp_path: Path) -> None:
    write(tmp_path / "ggml-tiny.bin")
    (tmp_path / "other.bin").write_bytes(b"GGUF")
    (tmp_path / "gone.bin").symlink_to(tmp_path / "nowhere.bin")
    found, problems = models_in(tmp_path)
    assert [(model.name, model.is_bundle) for model in found] == [("ggml-tiny", False)] and problems == []
    assert is_speech(tmp_path / "ggml-tiny.bin") and not is_speech(tmp_path / "other.bin")


def test_a_file_that_ends_early_says_so_wherever_it_ends(tmp_path: Path) -> None:
    whole = write(tmp_path / "m.bin").read_bytes()
    for size in (*range(0, 200, 7), *range(200, len(whole), 997), len(whole) - 1):
        cut = tmp_path / "cut.bin"
        cut.write_bytes(whole[:size])
        with pytest.raises(CompileError), open_speech(cut) as source:
            compiled(cut, tmp_path / "bundle")
            assert source


HEAD = 4 + 11 * 4  # bytes in front of the filters


@pytest.mark.parametrize(
    ("place", "value", "error", "message"),
    [
        (0, 7, CompileError, "not a file of whisper.cpp"),
        (4, -1, CompileError, "it has -1 where"),
        (12, 64, UnsupportedModel, "as wide as the decoder"),
        (4, 101, UnsupportedModel, "tokens leave"),
        (HEAD, 9, CompileError, "filters of 9 rows for 8 bands"),
        (HEAD + 4, 1 << 21, CompileError, "it ends early"),
    ],
)
def test_numbers_that_cannot_be_are_named(
    place: int, value: int, error: type[CompileError], message: str, tmp_path: Path
) -> None:
    content = bytearray(write(tmp_path / "m.bin").read_bytes())
    content[place : place + 4] = struct.pack("<i", value)
    (tmp_path / "m.bin").write_bytes(content)
    with pytest.raises(error, match=message), open_speech(tmp_path / "m.bin"):
        pass


def test_a_type_that_is_not_known_and_a_tensor_that_comes_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "m.bin")
    whole = path.read_bytes()
    tensor = struct.pack("<4i", 1, 4, 0, 1) + b"more" + bytes(4)
    path.write_bytes(whole + tensor + tensor)
    with pytest.raises(CompileError, match="comes twice"):
        GgmlReader(path).model()
    path.write_bytes(whole + struct.pack("<4i", 1, 4, 999, 1) + b"more" + bytes(4))
    with pytest.raises(UnsupportedModel, match="'more' cannot be read"):
        GgmlReader(path).model()
    path.write_bytes(whole + tensor)
    with pytest.raises(UnsupportedModel, match="tensor more, which whisper does not use"):
        compiled(path, tmp_path / "bundle")
