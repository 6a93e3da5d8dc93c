"""Keys and values of 16 bits, as `--quality best` takes them, in the HTP emulator."""

from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import Manifest, load_manifest
from engine.compile.arguments import CompileArguments, QualityLevel, Quant, Target
from engine.compile.check.parity import bundle_logits, parity_tokens
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.quantisation.choose import quality

pytest.importorskip("onnxruntime_qnn")

from engine.runtime.qnn.provider import EMULATOR, qnn_provider
from engine.runtime.qnn.trial import check_bundle


@pytest.mark.parametrize("quant", [Quant.W4A16, Quant.W8A16])
def test_the_emulator_reads_and_writes_them_as_the_cpu_does(
    quant: Quant, tiny_checkpoint: Path, short_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality, "CACHE_SHARE", 0.0)

    def compiled(name: str, quality: QualityLevel, target: Target) -> Manifest:
        arguments = CompileArguments(
            tiny_checkpoint,
            tmp_path / name,
            target=target,
            quant=quant,
            quality=quality,
            rows=(16,),
            context=(64,),
            share_weights=target is Target.CPU,
            parity_tokens=8,
            calibration=short_text,
        )
        return compile_bundle(arguments, SilentProgress())

    wide = compiled("npu", QualityLevel.BEST, Target.X_ELITE)
    check_bundle(tmp_path / "npu", wide, None)
    assert wide.npu is not None and wide.npu.parity_on == EMULATOR and "int16" in wide.npu.not_genie
    assert load_manifest(tmp_path / "npu").kv_dtype == "int16"
    narrow = compiled("narrow", QualityLevel.GOOD, Target.X_ELITE)
    assert (narrow.kv_dtype, wide.kv_bytes_per_token) == ("uint8", 2 * narrow.kv_bytes_per_token)
    twin = compiled("cpu", QualityLevel.BEST, Target.CPU)
    texts = [parity_tokens(tmp_path / "npu", wide.model.vocab, 48)]
    emulated = bundle_logits(tmp_path / "npu", wide, texts, provider=qnn_provider(wide))
    on_cpu = bundle_logits(tmp_path / "cpu", twin, texts)
    assert np.abs(emulated - on_cpu).max() < 0.01 * np.abs(on_cpu).max()
