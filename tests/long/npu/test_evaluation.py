"""`hexserve eval` of X Elite binaries in the HTP emulator, beside the same model on the CPU."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.runtime.qnn.provider import EMULATOR
from server.commands.cli import app

TEXT = "The capital of France is Paris. 12 plus 30 is 42. The keeper wrote the weather into a book every evening."


@pytest.mark.parametrize("layout", ["fp16", "fused fp16"])
def test_binaries_are_measured_in_the_emulator(
    npu_bundle: Callable[[str], Path], npu_cache: Path, tmp_path: Path, layout: str
) -> None:
    text, figures = tmp_path / "text", tmp_path / "figures"
    text.write_text(TEXT, encoding="utf-8")
    words = ["eval", str(npu_bundle(layout)), "demo", "--against", "demo", "--text", str(text), "--json", str(figures)]
    environment = {"HEXSERVE_CACHE_DIR": str(npu_cache)}
    done = CliRunner().invoke(app, [*words, "--tokens", "30", "--context", "15"], env=environment)
    assert done.exit_code == 0, done.output
    half, whole = json.loads(figures.read_text(encoding="utf-8"))["models"]
    assert (half["device"], whole["device"]) == (EMULATOR, "CPU")
    assert half["quality"]["tokens"] == 28
    assert half["quality"]["top1"]["value"] == 1.0
    assert whole["quality"]["kl"]["value"] < half["quality"]["kl"]["value"] < 1e-4
    assert half["quality"]["perplexity"]["value"] == pytest.approx(whole["quality"]["perplexity"]["value"], rel=0.02)
