"""Chosen codes for layers that are not x + f(norm(x)): what prepares a network leaves it as it is; streams."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bundle.manifest import Manifest
from engine.compile.arguments import KvType, Layout, QualityLevel, Quant
from engine.compile.calibration.forward import embedded, reference_logits
from engine.compile.quantisation.choose.channels import ChannelScales
from engine.compile.quantisation.transforms.heads import balancing_edits, head_statistics
from engine.compile.quantisation.transforms.transformed import TransformedCheckpoint
from engine.compile.sources.source import FolderSource
from engine.models.family import read_network
from tests.engine.compile.check.test_families import CASES
from tests.engine.compile.quantisation.choose.test_choose import check_streams
from tests.engine.compile.quantisation.choose.texts import SYMMETRIC, random_texts

MakeOracle = Callable[..., tuple[Any, Path]]
UNLIKE = ("granite", "hunyuan", "ernie", "olmo2", "olmo3", "exaone4", "glm4", "gemma2", "gemma3", "smollm3")


@pytest.mark.parametrize("case", UNLIKE)
def test_logits_stay_and_streams_are_those_of_the_definition(
    case: str, make_oracle: MakeOracle, tmp_path: Path
) -> None:
    family, _, changes = CASES[case]
    source = FolderSource(make_oracle(family, **changes)[1])
    network, tokens = read_network(source.config), np.array(random_texts(1, 40)[0])
    offset = network.details.norm_offset
    with source.tensors() as checkpoint:
        expected = reference_logits(checkpoint, network, tokens)
        statistics, _ = head_statistics(checkpoint, network, random_texts(3, 40), lambda _: None)
        even = TransformedCheckpoint(checkpoint, balancing_edits(network, statistics), offset)
        states = embedded(even, network, random_texts(3, 40))
        edits = ChannelScales(even, network, SYMMETRIC, 1000).edits(states, lambda _: None)
        found = reference_logits(TransformedCheckpoint(even, edits, offset), network, tokens)
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
    check_streams(source, tmp_path / "codes")


@pytest.mark.parametrize("case", ["gemma3", "olmo2"])
def test_chosen_codes_lose_less(
    case: str, make_oracle: MakeOracle, build: Callable[..., tuple[Path, Manifest]], short_text: Path
) -> None:
    """Than those of rounding to nearest, both of 4 bits as they are served."""
    family, _, changes = CASES[case]
    _, source = make_oracle(family, **changes)
    lost, kinds = [], {"quant": Quant.INT4, "layout": Layout.SEGMENTS, "kv": KvType.FLOAT32}
    for chosen in ({"quality": QualityLevel.FAST}, {"quality": QualityLevel.GOOD, "calibration": short_text}):
        _, manifest = build(source, **chosen, **kinds)
        lost.append(manifest.parity["kl"])
    assert manifest.quality is not None and manifest.quality.level == "good"
    assert lost[1] < 0.8 * lost[0]
