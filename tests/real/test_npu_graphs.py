"""The NPU's graphs of published weights, run by the CPU provider, against the floats of the same file."""

from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import Manifest
from engine.compile.arguments import CompileArguments, Quant, Target
from engine.compile.calibration.forward import reference_logits
from engine.compile.check.parity import bundle_logits, compare_logits
from engine.compile.graphs import integer_graphs
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.quantisation.choose import quality
from engine.compile.sources.source import open_source
from engine.compile.sources.text_files import load_tokenizer
from engine.compile.targets.measure import Q4_0
from engine.models.family import read_network

WINDOW = 512
EIGHT_BITS_BAR, KEPT_BAR, Q4_0_BAR = 0.01, 0.005, 0.35


def compiled(
    source: Path, folder: Path, quant: Quant, target: Target = Target.CPU, parity_tokens: int = WINDOW
) -> Manifest:
    """By default settings."""
    shapes = {"rows": (64,), "context": (WINDOW + 64,), "parity_tokens": parity_tokens}
    arguments = CompileArguments(source, folder, quant=quant, target=target, quality=None, **shapes)
    manifest = compile_bundle(arguments, SilentProgress())
    assert manifest.parity["tokens"] >= parity_tokens
    return manifest


def loss_on(held_out: str, source: Path, folder: Path, manifest: Manifest, windows: int) -> float:
    """Mean KL [nats] on the beginning of the text."""
    tokens = load_tokenizer(folder).encode(held_out).ids[: WINDOW * windows]
    texts = [tokens[start : start + WINDOW] for start in range(0, len(tokens), WINDOW)]
    opened = open_source(source)
    with opened.tensors() as checkpoint:
        network = read_network(opened.config)
        expected = np.concatenate([reference_logits(checkpoint, network, np.array(text)) for text in texts])
    return compare_logits(expected, bundle_logits(folder, manifest, texts)).kl.value


@pytest.mark.parametrize("share", [8, pytest.param(1, marks=pytest.mark.full)])
def test_eight_bits_lose_next_to_nothing(
    smollm2: Path, held_out: str, tmp_path: Path, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """share: of the text that is observed by default so many times less."""
    monkeypatch.setattr(quality, "BYTE_TOKENS", quality.BYTE_TOKENS // share)
    monkeypatch.setattr(integer_graphs, "SEQUENCES", integer_graphs.SEQUENCES // share)
    manifest = compiled(smollm2, tmp_path / "bundle", Quant.W8A16, parity_tokens=64)  # `loss_on` reads more
    assert manifest.quality is not None
    assert "rotated stream and values" in manifest.quality.methods
    assert loss_on(held_out, smollm2, tmp_path / "bundle", manifest, 1 if share > 1 else 2) <= EIGHT_BITS_BAR


@pytest.mark.full
def test_codes_of_a_file_are_kept(smollm2: Path, tmp_path: Path) -> None:
    assert compiled(smollm2, tmp_path / "bundle", Quant.W4, Target.X_ELITE).parity["kl"] <= KEPT_BAR


@pytest.mark.full
def test_chosen_codes_lose_far_less_than_q4_0(smollm2: Path, tmp_path: Path) -> None:
    parity = compiled(smollm2, tmp_path / "bundle", Quant.W4A16).parity
    assert parity["kl"] <= Q4_0_BAR * parity[Q4_0]
