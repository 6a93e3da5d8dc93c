"""What lies beside a GGUF model and reads images: whether it is its own, what it says, and the bundle of both."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.bundle.manifest import load_manifest
from engine.compile.arguments import CompileArguments, Layout, Quant
from engine.compile.pipeline import compile_bundle, resolve
from engine.compile.progress import SilentProgress
from engine.compile.sources.gguf.architectures import ARCHITECTURES
from engine.compile.sources.gguf.file import GgufSource
from engine.compile.sources.gguf.header import read_header
from engine.compile.sources.gguf.projector import FORMS, projector_of
from engine.errors import CompileError, UnsupportedModel
from engine.models.vision import READERS, read_vision
from engine.models.vision_network import NativeNetwork, VisionFiles
from tests.engine.compile.sources.gguf.gguf_files import write_gguf
from tests.engine.compile.sources.gguf.projector_files import PAIRS, write_facts, write_pair, write_projector

Make = Callable[..., tuple[Any, Path]]


@pytest.fixture
def llama(make_oracle: Make, tmp_path: Path) -> Path:
    """A model of text, 64 numbers wide."""
    return write_gguf(make_oracle("Llama")[1], tmp_path / "llama-Q8_0.gguf")


def test_a_model_alone_reads_text(llama: Path) -> None:
    source = GgufSource(llama)
    assert source.config["architectures"] == ["LlamaForCausalLM"] and source.processor() == {} and not source.remark


def test_what_fits_belongs_to_the_model(llama: Path) -> None:
    write_facts(llama.with_name("mmproj-llama-f16.gguf"))
    source = GgufSource(llama)
    assert source.config["architectures"] == ["SmolVLMForConditionalGeneration"]
    assert source.processor()["size"] == {"longest_edge": 128}
    assert GgufSource(llama, with_images=False).config["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.parametrize(("kind", "changes"), [("idefics3", {"vision__projection_dim": 65}), ("qwen3vl_merger", {})])
def test_what_belongs_to_another_model_is_left_alone(llama: Path, kind: str, changes: dict[str, Any]) -> None:
    write_facts(llama.with_name("mmproj.gguf"), kind, **changes)
    source = GgufSource(llama)
    assert source.config["architectures"] == ["LlamaForCausalLM"] and not source.remark


def test_a_kind_that_is_not_read_is_told_and_the_text_model_is_compiled(llama: Path) -> None:
    write_facts(llama.with_name("mmproj.gguf"), "pixtral")
    source = GgufSource(llama)
    assert source.config["architectures"] == ["LlamaForCausalLM"]
    assert "projector_type 'pixtral' is not supported" in source.remark and "for text" in source.remark
    notes: list[str] = []

    class Noted(SilentProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    arguments = CompileArguments(llama, llama.with_name("bundle"), quant=Quant.FP32)
    resolve(arguments, Noted())
    assert notes == [source.remark]


def test_of_several_the_one_that_is_named_as_the_model_then_the_largest(llama: Path) -> None:
    write_facts(llama.with_name("mmproj-other.gguf"), vision__preproc_image_size=96, padding=[0.5] * 500)
    write_facts(llama.with_name("mmproj-llama-q8.gguf"), vision__preproc_image_size=160)
    write_facts(llama.with_name("mmproj-llama-f32.gguf"), vision__preproc_image_size=128, padding=[0.5] * 99)
    assert GgufSource(llama).processor()["size"] == {"longest_edge": 128}


def test_a_damaged_one_is_an_error_that_names_it(llama: Path) -> None:
    llama.with_name("mmproj.gguf").write_bytes(b"GGUF")
    with pytest.raises(CompileError, match=r"mmproj\.gguf"):
        GgufSource(llama)


def test_it_is_no_model_itself(llama: Path) -> None:
    with pytest.raises(UnsupportedModel, match="name the model's file"):
        GgufSource(write_facts(llama.with_name("mmproj.gguf")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision__block_count": None}, "clip.vision.block_count is missing"),
        ({"vision__image_size": 0}, "clip.vision.image_size must be an integer from 1 to 4096"),
        ({"vision__image_mean": [0.5, 0.5]}, "clip.vision.image_mean must be a list of 3 numbers"),
        (
            {"vision__image_std": [0.5, 0.5, 2.0]},
            "clip.vision.image_std holds 2.0",
        ),
    ],
)
def test_facts_that_are_missing_or_wrong_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    projector = projector_of(read_header(write_facts(tmp_path / "mmproj.gguf", **changes)))
    with pytest.raises(CompileError, match=re.escape(message)):
        (projector.config("llama"), projector.processor())


NATIVE = {"vision__patch_size": 14, "vision__n_wa_pattern": 2, "vision__image_size": 560, "vision__block_count": 4}
KINDS: dict[str, dict[str, Any]] = {
    "gemma3": {},
    "idefics3": {},
    "internvl": {},
    "qwen2.5vl_merger": NATIVE,
    "qwen3vl_merger": NATIVE | {"vision__is_deepstack_layers": [False, True, False, True]},
}


@pytest.mark.parametrize("kind", FORMS)
def test_each_kind_says_what_the_reader_of_its_class_wants(tmp_path: Path, kind: str) -> None:
    projector = projector_of(read_header(write_facts(tmp_path / "mmproj.gguf", kind, **KINDS[kind])))
    config = {}
    for text, name in FORMS[kind].classes.items():
        config = projector.config(text)
        assert config["architectures"] == [name] and name in READERS and text in ARCHITECTURES
    network = read_vision(VisionFiles(config, projector.processor(), lambda _: 7))
    assert network is not None and (network.hidden, network.heads, network.ffn) == (48, 4, 80)
    if isinstance(network, NativeNetwork):
        assert network.deep == ((1, 3) if kind == "qwen3vl_merger" else ())
        assert network.seeing_all == (frozenset() if kind == "qwen3vl_merger" else {1, 3})


def test_silu_is_refused_where_the_encoder_has_none(tmp_path: Path) -> None:
    projector = projector_of(read_header(write_facts(tmp_path / "mmproj.gguf", "internvl", use_silu=True)))
    with pytest.raises(UnsupportedModel, match="use_silu"):
        projector.config("qwen2")


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder, and the same as two GGUF files."""
    return write_pair(tmp_path_factory.mktemp("folder"), tmp_path_factory.mktemp("files"), request.param)


def kind_of(pair: tuple[Path, Path]) -> str:
    return pair[1].name.removesuffix("-f32.gguf")


@pytest.mark.parametrize("is_old", [False, True])
def test_both_files_make_the_bundle_of_the_folder(pair: tuple[Path, Path], is_old: bool, tmp_path: Path) -> None:
    """Also where the file has the two matrices of a feed-forward under each other's names."""
    model = Path(shutil.copy(pair[1], tmp_path))
    write_projector(pair[0], tmp_path / "mmproj.gguf", kind_of(pair), is_old)
    folders = [tmp_path / "of-folder", tmp_path / "of-files"]
    for source, folder in zip((pair[0], model), folders, strict=True):
        compile_bundle(CompileArguments(source, folder, quant=Quant.FP32, name="m"), SilentProgress())
    expected, found = map(load_manifest, folders)
    assert found.vision is not None and found.vision == expected.vision
    assert {
        name: file.sha256 for name, file in found.files.items() if name.startswith(("vision", "shared", "layers"))
    } == {name: file.sha256 for name, file in expected.files.items() if name.startswith(("vision", "shared", "layers"))}
    assert (found.model, found.text.chat_template) == (expected.model, expected.text.chat_template)


def test_a_tensor_that_nothing_reads_is_refused_by_its_name(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Such as norms of queries, which other encoders of this kind have."""
    model = shutil.copy(pair[1], tmp_path)
    write_projector(pair[0], tmp_path / "mmproj.gguf", kind_of(pair), vision__block_count=1)
    with pytest.raises(UnsupportedModel, match=r"tensor v\.blk\.1\."):
        compile_bundle(CompileArguments(Path(model), tmp_path / "bundle", quant=Quant.FP32), SilentProgress())


@pytest.mark.parametrize("pair", ["idefics3"], indirect=True)
def test_other_layouts_are_of_the_text_model(pair: tuple[Path, Path], tmp_path: Path) -> None:
    arguments = CompileArguments(pair[1], tmp_path / "bundle", quant=Quant.FP32, layout=Layout.POOL)
    compile_bundle(arguments, SilentProgress())
    assert load_manifest(tmp_path / "bundle").vision is None
