"""Mixtures of 4 and 8 bits: what is promised is what the definition loses, and no matrix is wide without need."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.compile.arguments import CompileArguments, QualityLevel, Quant
from engine.compile.calibration.forward import reference_logits
from engine.compile.check.parity import mean_divergence
from engine.compile.pipeline import compile_bundle
from engine.compile.quantisation.choose.choose import Forms
from engine.compile.quantisation.choose.form import CodeForm, nearest
from engine.compile.quantisation.choose.matrices import groups_of
from engine.compile.quantisation.choose.wide import (
    CHOSEN,
    MARGIN,
    Q4_0_SHARE,
    Q4_K_M_SHARE,
    Aim,
    Losses,
    Mixture,
    q4_0_of,
    widened,
)
from engine.compile.quantisation.methods.integer_blocks import INT4
from engine.compile.sources.checkpoint import Checkpoint, RoundedCheckpoint
from engine.compile.sources.source import FolderSource
from engine.models.family import read_network
from engine.models.network import Network
from tests.engine.compile.quantisation.choose.test_quality import Notes
from tests.engine.compile.quantisation.choose.texts import ROWS

ARGUMENTS = CompileArguments(Path(), Path())
FORM = CodeForm.of(INT4, ARGUMENTS)
TEXTS = [list(range(1, 41)), list(range(200, 160, -1))]


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Checkpoint, Network]]:
    source = FolderSource(folder)
    with source.tensors() as checkpoint:
        yield checkpoint, read_network(source.config)


def matrices(network: Network) -> frozenset[str]:
    return frozenset(
        name for layer in range(network.spec.layers) for group in groups_of(network, layer) for name in group.tensors
    )


def lost(checkpoint: Checkpoint, network: Network, wide: frozenset[str], wide_form: CodeForm | None = None) -> float:
    """KL of the definition with all but the wide matrices rounded, and these in a form of their own."""
    assert FORM is not None
    form = FORM
    roundings = dict.fromkeys(matrices(network) - wide, lambda weight: nearest(weight, form).floats())
    if wide_form is not None:
        roundings |= dict.fromkeys(wide, lambda weight: nearest(weight, wide_form).floats())
    rounded = RoundedCheckpoint(checkpoint, roundings)
    expected, found = (
        np.concatenate([reference_logits(each, network, np.array(text)) for text in TEXTS])
        for each in (checkpoint, rounded)
    )
    return mean_divergence(expected, found)


def mixture(
    checkpoint: Checkpoint,
    network: Network,
    share: float,
    kept: frozenset[str] = frozenset(),
    wide: CodeForm | None = None,
    of_caches: float = 0.0,
) -> Mixture:
    assert FORM is not None
    target = Aim(q4_0_of(network), share, "Q4_0").target(checkpoint, network, TEXTS)
    return widened(Losses(checkpoint, network, TEXTS), Forms(FORM, wide=wide), kept, target, of_caches)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 10.0])
def test_a_mixture_loses_what_it_says_and_reaches_its_aim(share: float, tiny_checkpoint: Path) -> None:
    with opened(tiny_checkpoint) as (checkpoint, network):
        found = mixture(checkpoint, network, share)
        assert found.kl == pytest.approx(CHOSEN * lost(checkpoint, network, found.wide), abs=1e-9)
        assert found.kl <= MARGIN * found.target
        assert (found.wide == matrices(network)) == (share == 0)
        assert (not found.wide) == (share == 10)
        assert found.share == {0.0: 1.0, 10.0: 0.0}.get(share, found.share)


def test_what_8_bits_and_caches_lose_counts(tiny_checkpoint: Path) -> None:
    with opened(tiny_checkpoint) as (checkpoint, network):
        of_caches = Losses(checkpoint, network, TEXTS).kl({}, has_byte_caches=True)
        rows, both = (mixture(checkpoint, network, 0.0, wide=ROWS, of_caches=lost) for lost in (0.0, of_caches))
        every = matrices(network)
        assert rows.wide == both.wide == every
        assert rows.kl == pytest.approx(CHOSEN * lost(checkpoint, network, every, ROWS), abs=1e-9)
    assert 0 < of_caches < both.kl < of_caches + 2 * rows.kl


def test_matrices_whose_codes_a_file_has_stay(tiny_checkpoint: Path) -> None:
    with opened(tiny_checkpoint) as (checkpoint, network):
        kept = frozenset(name for name in matrices(network) if "mlp" in name)
        found = mixture(checkpoint, network, 0.0, kept)
        assert found.wide == matrices(network) - kept


FORMS: dict[Quant, dict[str, Any]] = {
    Quant.INT4: {"head": Quant.INT8},
    Quant.W4A16: {"head": Quant.W8A16, "rows": (8,), "context": (64,)},
}


@pytest.mark.parametrize("quant", FORMS)
def test_a_bundle_has_both_widths_and_says_so(
    quant: Quant, tiny_checkpoint: Path, short_text: Path, tmp_path: Path
) -> None:
    sizes, notes = dict[QualityLevel, int](), dict[QualityLevel, Notes]()
    for level in QualityLevel:
        notes[level] = Notes()
        arguments = CompileArguments(tiny_checkpoint, tmp_path / level, quant=quant, quality=level)
        manifest = compile_bundle(replace(arguments, calibration=short_text, **FORMS[quant]), notes[level])
        sizes[level] = sum(entry.bytes for name, entry in manifest.files.items() if name.endswith("data"))
    assert manifest.quality is not None
    assert 0 < manifest.quality.wide <= 1
    assert sizes[QualityLevel.GOOD] > sizes[QualityLevel.FAST]
    aims = ["".join(text for text in notes[level].texts if "get 8 bits" in text) for level in QualityLevel]
    assert aims[0] == ""
    assert aims[1].endswith(f"Q4_K_M times {Q4_K_M_SHARE}" if quant is Quant.INT4 else f"Q4_0 times {Q4_0_SHARE}")
    assert aims[2].endswith(f"Q4_K_M times {Q4_K_M_SHARE}")
