"""What a new family and a new method of quantisation take: one declaration, or one store and product with a row."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import Manifest
from engine.bundle.model_spec import LayerAttention, RotationKind
from engine.compile.arguments import CompileArguments, Layout, Quant
from engine.compile.calibration.forward import reference_logits
from engine.compile.check.parity import bundle_logits, compare_logits
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.quantisation.choose.matrices import groups_of
from engine.compile.quantisation.methods.method import (
    Activations,
    FloatMatrix,
    Method,
    StoredMatrix,
    multiply_floats,
    store_floats,
)
from engine.compile.quantisation.methods.table import METHODS
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import CheckpointView, Float32
from engine.compile.sources.source import FolderSource
from engine.models import family
from engine.models.family import FAMILIES, Family, read_network
from engine.models.network import FamilyDetails, QkNorm

TEXT = [*range(3, 35)]


def compiled(source: Path, output: Path, layout: Layout, quant: Quant) -> Manifest:
    arguments = CompileArguments(
        source, output, layout=layout, quant=quant, embedding_bits=32, head=Quant.FP32, parity_tokens=len(TEXT)
    )
    return compile_bundle(arguments, SilentProgress())


def signs(weight: Float32) -> Float32:
    """[outputs, inputs]: of each output one magnitude is kept, and the signs."""
    return np.asarray(np.sign(weight) * np.abs(weight).mean(axis=1, keepdims=True), np.float32)


def store_signs(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    return store_floats(file, replace(matrix, slices=map(signs, matrix.slices), kept=None), arguments)


class SignedCheckpoint(CheckpointView):
    """The definition: every matrix of the layers replaced by its signs."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        values = self.inner.tensor(name, shape)
        return signs(values) if len(shape) == 2 and ".layers." in name else values


def test_a_method_is_a_store_and_a_product_in_one_row(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Method(Quant.INT8, Activations.FLOAT32, store_signs, multiply_floats, bytes_per_weight=4)
    monkeypatch.setitem(METHODS, Quant.INT8, toy)
    manifest = compiled(tiny_checkpoint, tmp_path / "toy", Layout.POOL, Quant.INT8)
    source = FolderSource(tiny_checkpoint)
    network = read_network(source.config)
    with source.tensors() as checkpoint:
        assert all(name in checkpoint for group in groups_of(network, 0) for name in group.tensors)
        expected = reference_logits(SignedCheckpoint(checkpoint), network, np.array(TEXT))
    found = compare_logits(expected, bundle_logits(tmp_path / "toy", manifest, [TEXT]))
    assert found.relative_error < 1e-4
    assert manifest.parity["kl"] > 0.001


@pytest.mark.parametrize("layout", [Layout.POOL, Layout.SEGMENTS])
def test_a_family_is_one_declaration(
    layout: Layout, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms that add 1 to what is stored, scores that are capped, a layer that knows no positions and, in segments, one
    with a window: the float definition and every graph follow, or fp32 would be refused."""
    is_segmented = layout is Layout.SEGMENTS
    unlike = (LayerAttention(window=5), LayerAttention(rotation=RotationKind.NONE)) if is_segmented else ()
    details = FamilyDetails(qk_norm=QkNorm.HEADS, norm_offset=1.0, attention_softcap=2.0, attention=unlike)
    toy = Family("toy", "ToyForCausalLM", lambda _: details)
    monkeypatch.setattr(family, "FAMILIES", FAMILIES | {toy.architecture: toy})
    source = tmp_path / "source"
    shutil.copytree(tiny_checkpoint, source)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (source / "config.json").write_text(json.dumps(config | {"architectures": [toy.architecture]}), encoding="utf-8")
    manifest = compiled(source, tmp_path / "toy", layout, Quant.FP32)
    assert manifest.model.family == "toy"
    assert manifest.parity["relative_error"] < 1e-3
    with FolderSource(source).tensors() as checkpoint:
        ours, theirs = (
            reference_logits(checkpoint, read_network(FolderSource(folder).config), np.array(TEXT))
            for folder in (source, tiny_checkpoint)
        )
    assert compare_logits(theirs, ours).relative_error > 0.1
