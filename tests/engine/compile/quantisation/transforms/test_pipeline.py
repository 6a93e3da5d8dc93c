"""Any quantisation sees rotated weights, and the bundle's parity is that against the checkpoint as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.weight_files import HEAD_BASIS
from engine.compile import pipeline
from engine.compile.arguments import CompileArguments, Layout, Quant
from engine.compile.calibration.forward import reference_logits
from engine.compile.check.parity import bundle_logits, compare_logits, parity_texts
from engine.compile.progress import SilentProgress
from engine.compile.sources.source import FolderSource, Source
from engine.models.family import read_network
from tests.engine.compile.quantisation.transforms.rotated_source import rotated

MakeOracle = Callable[..., tuple[Any, Path]]
COUNT = 24
OPTIONS: dict[Quant, dict[str, Any]] = {
    Quant.FP32: {},
    Quant.INT4: {},
    Quant.W4A16: {"rows": (8,), "context": (64,)},
}


def open_plain(path: Path, with_images: bool = True) -> Source:
    return FolderSource(path)


def open_rotated(path: Path, with_images: bool = True) -> Source:
    source = FolderSource(path)
    return rotated(source, read_network(source.config), 5)


@pytest.mark.parametrize("quant", OPTIONS)
def test_parity_is_against_the_float_checkpoint(
    quant: Quant, make_oracle: MakeOracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = make_oracle("Qwen3", head_dim=32, intermediate_size=128, tie_word_embeddings=True)
    monkeypatch.setattr(pipeline, "open_source", open_rotated)
    bundle = tmp_path / "bundle"
    arguments = CompileArguments(folder, bundle, quant=quant, layout=Layout.POOL, parity_tokens=COUNT, **OPTIONS[quant])
    pipeline.compile_bundle(arguments, SilentProgress())
    manifest = load_manifest(bundle)
    network = read_network(FolderSource(folder).config)
    texts = parity_texts(folder, bundle, network.spec.vocab, COUNT, 64)
    with FolderSource(folder).tensors() as checkpoint:
        expected = np.concatenate([reference_logits(checkpoint, network, np.array(text)) for text in texts])
    found = compare_logits(expected, bundle_logits(bundle, manifest, texts))
    assert manifest.parity["tokens"] == found.tokens
    assert manifest.parity["top1"] == pytest.approx(found.top1.value, abs=1e-6)
    assert manifest.parity["kl"] == pytest.approx(found.kl.value, rel=1e-3, abs=1e-7)
    if quant is Quant.FP32:
        assert found.relative_error < 1e-5


def test_the_rounded_weights_are_the_rotated_ones(
    make_oracle: MakeOracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = make_oracle("Qwen3", head_dim=32, intermediate_size=128, tie_word_embeddings=True)
    digests = []
    for opener in (open_plain, open_rotated):
        monkeypatch.setattr(pipeline, "open_source", opener)
        bundle = tmp_path / opener.__name__
        manifest = pipeline.compile_bundle(
            CompileArguments(folder, bundle, layout=Layout.SEGMENTS, parity_tokens=COUNT), SilentProgress()
        )
        digests.append(manifest.files)
    assert digests[1].keys() - digests[0].keys() == {HEAD_BASIS} and not digests[0].keys() - digests[1].keys()
    changed = [name for name, entry in digests[0].items() if digests[1][name] != entry]
    assert any(name.endswith(".data") for name in changed)
