"""Balanced heads and rotated streams in finished bundles: what channels that stand out cost."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from engine.bundle.manifest import Manifest
from engine.compile.arguments import CompileArguments, QualityLevel, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.quantisation.choose.quality import BYTE_TOKENS
from engine.compile.quantisation.transforms.heads import StreamStatistics
from tests.engine.compile.quantisation.transforms.outliers import OutlierPlan, plant_outliers


def compiled(source: Path, output: Path, quality: QualityLevel, text: Path) -> Manifest:
    arguments = CompileArguments(source, output, quant=Quant.W8A16, quality=quality, parity_tokens=64)
    return compile_bundle(replace(arguments, rows=(32,), context=(128,), calibration=text), SilentProgress())


def test_a_value_channel_that_stands_out_costs_the_caches_little(
    tiny_checkpoint: Path, short_text: Path, tmp_path: Path
) -> None:
    plant_outliers(tiny_checkpoint, tmp_path / "planted", OutlierPlan(channels=0, columns=0, ffn=0, values=2))
    lost = {}
    for name, source in (("plain", tiny_checkpoint), ("planted", tmp_path / "planted")):
        for quality in (QualityLevel.FAST, QualityLevel.GOOD):
            made = compiled(source, tmp_path / f"{name}-{quality}", quality, short_text)
            lost[name, quality] = made.parity["kl"]
            assert (made.quality is None) == (quality is QualityLevel.FAST)
            if made.quality is not None:
                assert made.quality.methods[0] == "balanced heads" and made.quality.methods[-1] == "ranges by error"
                assert 0 < made.quality.tokens <= BYTE_TOKENS
    print(lost)
    assert lost["planted", QualityLevel.FAST] > 5 * lost["plain", QualityLevel.FAST]
    assert lost["planted", QualityLevel.GOOD] < 2 * lost["plain", QualityLevel.FAST]


def with_massive_tokens(source: Path, folder: Path) -> Path:
    """Every 16th token has a number of thousands in one channel, as first tokens of published models do."""
    shutil.copytree(source, folder)
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        for name in (name for name in tensors if "embed_tokens" in name):
            table = tensors[name].copy()
            table[::16, 5] = 4000
            tensors[name] = table
        save_file(tensors, path, {"format": "pt"})
    return folder


def test_a_stream_with_outliers_is_rotated(tiny_checkpoint: Path, short_text: Path, tmp_path: Path) -> None:
    source = with_massive_tokens(tiny_checkpoint, tmp_path / "massive")
    levels = (QualityLevel.FAST, QualityLevel.GOOD)
    fast, good = (compiled(source, tmp_path / level, level, short_text) for level in levels)
    plain = compiled(tiny_checkpoint, tmp_path / "plain", QualityLevel.GOOD, short_text)
    assert good.quality is not None and plain.quality is not None
    assert good.quality.methods[:2] == ("balanced heads", "rotated stream and values")
    assert plain.quality.methods == ("balanced heads", "targets from the float stream", "GPTQ", "ranges by error")
    assert not good.model.tied_head
    assert good.parity["kl"] < 0.25 * fast.parity["kl"]


def test_the_stream_is_known_by_its_largest_number() -> None:
    seen = StreamStatistics()
    seen.add(np.array([[1.0, -1.0], [3.0, -4.0], [2.0, 2.0]], np.float32))
    seen.add(np.array([[1.0, 1.0]], np.float32))
    assert (seen.largest, seen.quiet) == (4.0, 2.0)
    assert np.isclose(seen.beside, np.sqrt(12.5))
