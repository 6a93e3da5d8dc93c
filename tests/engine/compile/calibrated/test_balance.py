"""Balanced heads in finished bundles: what a channel that stands out costs, and where nothing is balanced."""

from dataclasses import replace
from pathlib import Path

from engine.bundle.manifest import Manifest
from engine.compile.arguments import CompileArguments, QualityLevel, Quant
from engine.compile.calibrated.estimate import HEAD_TOKENS
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.transforms.outliers import OutlierPlan
from engine.compile.transforms.plant_outliers import plant_outliers


def compiled(source: Path, output: Path, quality: QualityLevel, **options: object) -> Manifest:
    arguments = CompileArguments(source, output, quant=Quant.W8A16, quality=quality, parity_tokens=64)
    return compile_bundle(replace(arguments, rows=(32,), context=(128,), **options), SilentProgress())


def test_a_value_channel_that_stands_out_costs_the_caches_little(tiny_checkpoint: Path, tmp_path: Path) -> None:
    plant_outliers(tiny_checkpoint, tmp_path / "planted", OutlierPlan(channels=0, columns=0, ffn=0, values=2))
    lost = {}
    for name, source in (("plain", tiny_checkpoint), ("planted", tmp_path / "planted")):
        for quality in (QualityLevel.FAST, QualityLevel.GOOD):
            made = compiled(source, tmp_path / f"{name}-{quality}", quality)
            lost[name, quality] = made.parity["kl"]
            assert (made.quality is None) == (quality is QualityLevel.FAST)
            if made.quality is not None:
                assert made.quality.methods[0] == "balanced heads" and made.quality.methods[-1] == "ranges by error"
                assert 0 < made.quality.tokens <= HEAD_TOKENS
    print(lost)
    assert lost["planted", QualityLevel.FAST] > 5 * lost["plain", QualityLevel.FAST]
    assert lost["planted", QualityLevel.GOOD] < 2 * lost["plain", QualityLevel.FAST]
