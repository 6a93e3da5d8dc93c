"""Whole compilations whose figures say that chosen codes follow the checkpoint more closely."""

from pathlib import Path

from engine.compile.arguments import QualityLevel
from tests.engine.compile.quantisation.choose.test_quality_stages import compiled
from tests.hybrid import make_hybrid


def test_float_caches_and_outputs_follow_the_checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Parity is with the floats of the checkpoint, which chosen codes follow more closely."""
    fast = compiled(tiny_checkpoint, tmp_path / "fast", quality=QualityLevel.FAST)
    good = compiled(tiny_checkpoint, tmp_path / "good")
    assert fast.quality is None
    assert good.parity["kl"] < fast.parity["kl"]


def test_recurrent_layers(short_text: Path, tmp_path: Path) -> None:
    make_hybrid(tmp_path / "model", gain=0.4)
    fast, good = (
        compiled(tmp_path / "model", tmp_path / level, quality=QualityLevel(level), calibration=short_text)
        for level in ("fast", "good")
    )
    assert good.parity["kl"] < fast.parity["kl"]
