"""When a bundle is warned of."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.specs import QualitySpec
from engine.compile.arguments import CompileArguments, Layout, QualityLevel, Quant, Target
from engine.compile.pipeline import compile_bundle
from engine.compile.targets.measure import Q4_0, baseline_warning, check_overflow
from engine.errors import CompileError
from tests.engine.compile.quantisation.choose.test_quality import Notes

GOOD = QualitySpec("good", (), 0, 0.0)


def test_only_what_loses_more_is_warned_of() -> None:
    assert baseline_warning({"kl": 0.3}, None) == ""  # not measured
    assert baseline_warning({"kl": 0.2, Q4_0: 0.2}, None) == ""
    fast, good = (baseline_warning({"kl": 0.34, Q4_0: 0.21}, quality) for quality in (None, GOOD))
    assert fast.startswith("warning: this bundle loses more than llama.cpp's Q4_0")
    assert "KL 0.340 against 0.210" in fast
    told = baseline_warning({"kl": 0.34, "kl_low": 0.3, "kl_high": 0.381, Q4_0: 0.21}, None)
    assert "KL 0.340 (0.300 to 0.381) against 0.210" in told
    assert fast.endswith("try --quality good")
    assert "--calibration" in good


def test_what_overflows_half_precision_is_told_what_to_take() -> None:
    logits = np.array([[0.0, np.nan]], np.float32)
    half = CompileArguments(Path("a"), Path("b"), Target.X_ELITE, Quant.W4)
    with pytest.raises(CompileError, match="--quant w4: the model overflows half precision; take --quant w8a16 or"):
        check_overflow(half, logits)
    check_overflow(half, logits[:, :1])
    check_overflow(replace(half, quant=Quant.W8A16), logits)  # another fault, told by the comparison


@pytest.mark.parametrize(("quant", "is_measured"), [(Quant.FP32, False), (Quant.W4A16, True)])
def test_q4_0_is_measured_where_something_is_lost(
    quant: Quant, is_measured: bool, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    shapes: dict[str, tuple[int, ...]] = {} if quant is Quant.FP32 else {"rows": (8,), "context": (64,)}
    arguments = CompileArguments(
        tiny_checkpoint, tmp_path / "b", quant=quant, parity_tokens=40, layout=Layout.POOL, quality=QualityLevel.FAST
    )
    notes = Notes()
    parity = compile_bundle(replace(arguments, **shapes), notes).parity
    assert (Q4_0 in parity) == is_measured
    assert parity["kl_low"] <= parity["kl"] <= parity["kl_high"]
    assert parity["top1_low"] <= parity["top1"] <= parity["top1_high"]
    assert any(text.startswith("warning") for text in notes.texts) == (parity["kl"] > parity.get(Q4_0, np.inf))
