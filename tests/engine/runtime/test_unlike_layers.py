"""Layers with windows and rotations of their own, as served: prompts in pieces, decodes, caches of both types."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.model_spec import LayerAttention, RotationKind
from engine.bundle.variant import shape_table
from engine.compile.arguments import CompileArguments, KvType, Layout, Quant
from engine.compile.calibration.forward import reference_logits
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.sources.source import FolderSource
from engine.models import family
from engine.models.family import FAMILIES, read_network
from engine.models.network import Family, FamilyDetails, QkNorm
from engine.runtime.segmented import SegmentRuntime
from engine.runtime.sessions import cpu_provider
from tests.engine.runtime.held import cache_bytes, held_bytes, owners
from tests.engine.runtime.test_attention_window import BLOCKS, OTHERS, TEXT, in_pieces
from tests.engine.runtime.test_onnx_runtime import segment
from tests.engine.runtime.test_onnx_segments import run

LAYERS = LayerAttention(12, RotationKind.LOCAL), LayerAttention(0, RotationKind.NONE)
TOY = Family(
    "toy",
    "ToyForCausalLM",
    lambda _: FamilyDetails(qk_norm=QkNorm.HEADS, attention=LAYERS, local_theta=100.0, attention_softcap=3.0),
)


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One of the toy family."""
    monkeypatch.setattr(family, "FAMILIES", FAMILIES | {TOY.architecture: TOY})
    source = tmp_path / "source"
    shutil.copytree(tiny_checkpoint, source)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (source / "config.json").write_text(json.dumps(config | {"architectures": [TOY.architecture]}), encoding="utf-8")
    return source


def opened(checkpoint: Path, kv: KvType) -> SegmentRuntime:
    folder = checkpoint.parent / "bundle"
    quant = Quant.FP32 if kv is KvType.FLOAT32 else Quant.INT8
    compile_bundle(CompileArguments(checkpoint, folder, layout=Layout.SEGMENTS, quant=quant, kv=kv), SilentProgress())
    return opened_again(folder)


def opened_again(folder: Path) -> SegmentRuntime:
    manifest = load_manifest(folder)
    return SegmentRuntime(folder, manifest, shape_table(manifest, 64), cpu_provider(1))


def expected(checkpoint: Path) -> np.ndarray:
    source = FolderSource(checkpoint)
    with source.tensors() as tensors:
        return reference_logits(tensors, read_network(source.config), np.array(TEXT))


@pytest.mark.parametrize(
    "edges", [(0, 60), (0, 7, 8, 30, 31, 60), tuple(range(61))], ids=["whole", "chunks", "decodes"]
)
def test_logits_are_those_of_the_definition(checkpoint: Path, edges: tuple[int, ...]) -> None:
    found = in_pieces(opened(checkpoint, KvType.FLOAT32), edges)
    np.testing.assert_allclose(found, expected(checkpoint), rtol=1e-4, atol=1e-4)


def test_int8_caches(checkpoint: Path) -> None:
    found, wanted = in_pieces(opened(checkpoint, KvType.INT8), (0, 30, 31, 32, 60)), expected(checkpoint)
    assert np.abs(found - wanted).max() < 0.1 * np.abs(wanted).max()
    assert (found.argmax(axis=1) == wanted.argmax(axis=1)).mean() > 0.9


def test_sequences_share_a_step_and_a_prefix(checkpoint: Path) -> None:
    runtime, wanted = opened(checkpoint, KvType.FLOAT32), expected(checkpoint)
    in_pieces(runtime, (0, 50))
    both = run(runtime, segment("a", TEXT[50:51], 50, BLOCKS, 1), segment("b", TEXT[:10], 0, OTHERS, 10))
    np.testing.assert_allclose(both, wanted[[50, *range(10)]], rtol=1e-4, atol=1e-4)
    shared = run(runtime, segment("c", TEXT[16:40], 16, (BLOCKS[0], 10, 11), 24))
    np.testing.assert_allclose(shared, wanted[16:40], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kv", [KvType.FLOAT32, KvType.INT8])
def test_what_lies_behind_a_window_is_given_back(checkpoint: Path, kv: KvType) -> None:
    """In steps of 10 tokens: layers with a window of 12 hold no more than at their start, the others everything."""
    text, blocks = TEXT * 6, range(20)
    free, kept = opened(checkpoint, kv), opened_again(checkpoint.parent / "bundle")
    for first in range(0, 320, 10):
        piece = segment("a", text[first : first + 10], first, tuple(blocks), 10)
        logits = [run(runtime, piece) for runtime in (free, kept)]
        np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-5)
        free.blocks.free_behind([block for block in blocks if 16 * (block + 1) <= first + 10 - LAYERS[0].window + 1])
        (cache,) = owners(free._caches)
        own = sum(part.keys.nbytes + part.values.nbytes for part in cache.behind)
        full = sum(part.keys.nbytes + part.values.nbytes for part in cache.full)
        assert cache.behind_columns <= 128 and own * cache.columns == full * cache.behind_columns
    assert cache.columns >= 320 and cache.behind[0].keys.itemsize == (1 if kv is KvType.INT8 else 4)
    assert held_bytes(free._caches) == cache_bytes(cache) < held_bytes(kept._caches)
