"""Every kind of bundle gives the logits of the float definition, window after window; what cannot is refused."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.bundle.manifest import DiffusionSpec, load_manifest, save_manifest
from engine.compile.arguments import CompileArguments, Layout, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.errors import BundleError, CompileError
from engine.evaluation.models import open_bundle, open_reference
from engine.runtime.onnx_library import ort
from tests.bundles import Bundles
from tests.embedders import compiled
from tests.engine.compile.sources.gguf.gguf_files import write_gguf
from tests.hybrid import Hybrid, text_of
from tests.tiny_encoder import write_encoder

WINDOWS = ([5, 17, 99, 123, 77, 42, 7, 11, 200, 31, 8, 64] * 4, [200, 31, 8, 5, 17], [99] * 20)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize(
    "layout", ["free", "lut", "fixed", "same past", "segments", "segments lora", "fused", "fused 3", "fused host"]
)
def test_a_bundle_gives_what_the_checkpoint_says(bundles: Bundles, stack: ExitStack, layout: str) -> None:
    model = open_bundle("mine", bundles(layout), None, stack)
    reference = open_reference("float", bundles.source, model.made_for, None, stack)
    assert (model.form, model.device, model.vocabulary.size) == ("fp32", "CPU", reference.vocabulary.size)
    for tokens in WINDOWS:
        found, expected = model.logits(tokens), reference.logits(tokens)
        assert found.shape == (len(tokens), reference.vocabulary.size)
        assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-4
        for first in (1, len(tokens) // 2, len(tokens) - 1):
            np.testing.assert_array_equal(model.logits(tokens, first=first), found[first:])
            np.testing.assert_allclose(reference.logits(tokens, first=first), expected[first:], atol=1e-5)


def test_graphs_without_a_past(bundles: Bundles, stack: ExitStack, tmp_path: Path) -> None:
    arguments = CompileArguments(
        bundles.source, tmp_path / "b", quant=Quant.FP32, layout=Layout.POOL, whole_context=(16, 64), parity_tokens=8
    )
    compile_bundle(arguments, SilentProgress())
    model = open_bundle("mine", tmp_path / "b", None, stack)
    reference = open_reference("float", bundles.source, model.made_for, None, stack)
    assert model.longest == 64
    for tokens in WINDOWS:
        assert np.allclose(model.logits(tokens), reference.logits(tokens), atol=1e-3)


def test_recurrent_layers(hybrid: Hybrid, stack: ExitStack) -> None:
    model = open_bundle("mine", hybrid.bundle, None, stack)
    text = text_of(30)
    assert np.allclose(model.logits(text), hybrid.logits(text), atol=1e-3)


@pytest.mark.parametrize(("layout", "longest"), [("fixed", 97), ("same past", 97), ("fused", 64)])
def test_how_much_of_a_text_fits(bundles: Bundles, stack: ExitStack, layout: str, longest: int) -> None:
    model = open_bundle("mine", bundles(layout), None, stack)
    assert model.longest == longest
    tokens = (WINDOWS[0] * 3)[:longest]
    assert len(model.logits(tokens)) == longest


def test_a_graph_is_opened_once_for_all_windows(
    bundles: Bundles, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    create = ort.InferenceSession

    def counted(path: str, *rest: object, **named: object) -> object:
        opened.append(path)
        return create(path, *rest, **named)

    monkeypatch.setattr(ort, "InferenceSession", counted)
    for layout in ("fixed", "segments"):
        model = open_bundle("mine", bundles(layout), None, stack)
        for tokens in WINDOWS:
            model.logits(tokens)
    assert opened
    assert len(opened) == len(set(opened))


def test_the_size_is_that_of_the_files(bundles: Bundles, stack: ExitStack) -> None:
    folder = bundles("free")
    found = sum(path.stat().st_size for path in folder.iterdir() if path.name != "manifest.json")
    assert open_bundle("mine", folder, None, stack).size == found


def test_what_predicts_no_next_token_is_refused_by_name(bundles: Bundles, stack: ExitStack, tmp_path: Path) -> None:
    embedder = compiled("embedder", tmp_path)
    with pytest.raises(BundleError, match=r"^mine makes embeddings: it predicts no next token$"):
        open_bundle("mine", embedder, None, stack)
    write_encoder(tmp_path / "bert")
    compile_bundle(CompileArguments(tmp_path / "bert", tmp_path / "encoder", quant=Quant.FP32), SilentProgress())
    with pytest.raises(BundleError, match=r"^mine is a text encoder: it predicts no next token$"):
        open_bundle("mine", tmp_path / "encoder", None, stack)
    blocks = shutil.copytree(bundles("free"), tmp_path / "blocks")
    save_manifest(blocks, msgspec.structs.replace(load_manifest(bundles("free")), diffusion=DiffusionSpec(4, 3)))
    with pytest.raises(BundleError, match=r"^mine denoises blocks: it predicts no next token$"):
        open_bundle("mine", blocks, None, stack)


def test_a_damaged_bundle_is_found(bundles: Bundles, stack: ExitStack, tmp_path: Path) -> None:
    folder = shutil.copytree(bundles("free"), tmp_path / "copy")
    data = next(folder.glob("*.data"))
    content = bytearray(data.read_bytes())
    content[100] ^= 255
    data.write_bytes(content)
    with pytest.raises(BundleError, match=r"is damaged"):
        open_bundle("mine", folder, None, stack)


def test_a_reference_that_cannot_be_used(stack: ExitStack, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"^--against none does not exist$"):
        open_reference("none", tmp_path / "none", 64, None, stack)
    with pytest.raises(CompileError, match=r"config\.json is missing"):
        open_reference("empty", tmp_path, 64, None, stack)


def test_a_gguf_file_is_a_reference(tiny_checkpoint: Path, free_bundle: Path, stack: ExitStack, tmp_path: Path) -> None:
    model = open_bundle("mine", free_bundle, None, stack)
    folder = open_reference("folder", tiny_checkpoint, model.made_for, None, stack)
    file = open_reference("file", write_gguf(tiny_checkpoint, tmp_path / "m.gguf"), model.made_for, None, stack)
    assert file.vocabulary.tokens("count them twice", 0) == folder.vocabulary.tokens("count them twice", 0)
    assert np.allclose(file.logits(WINDOWS[0]), folder.logits(WINDOWS[0]), atol=1e-4)
