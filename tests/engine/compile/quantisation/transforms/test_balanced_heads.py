"""Balanced heads: the same function, with keys and values of one size in every channel and head."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.compile.calibration import attention
from engine.compile.calibration.forward import reference_hidden
from engine.compile.quantisation.transforms.heads import (
    LARGEST,
    SMOOTHED,
    STANDS_OUT,
    HeadStatistics,
    StreamStatistics,
    balancing_edits,
    head_statistics,
    key_factors,
    smoothing_edits,
    value_factors,
)
from engine.compile.quantisation.transforms.rotation import Edits, LinearEdit
from engine.compile.sources.source import FolderSource, Source
from engine.compile.sources.task import names_in
from engine.models.family import read_network
from tests.engine.compile.quantisation.transforms.logits import LIMIT, TOKENS, logits_of, relative_error
from tests.engine.compile.quantisation.transforms.outliers import OutlierPlan, with_outliers
from tests.engine.compile.quantisation.transforms.rotated_source import TransformedSource
from tests.hybrid import make_hybrid

MakeOracle = Callable[..., tuple[Any, Path]]
TEXTS = [TOKENS.tolist(), TOKENS[::-1][:17].tolist()]
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": True, "tie_word_embeddings": False},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 32, "tie_word_embeddings": True},
    "Phi3": {"partial_rotary_factor": 0.5},
}


def statistics_of(source: Source) -> dict[int, HeadStatistics]:
    return all_statistics_of(source)[0]


def all_statistics_of(source: Source) -> tuple[dict[int, HeadStatistics], StreamStatistics]:
    network = read_network(source.config)
    with source.tensors() as checkpoint:
        return head_statistics(checkpoint, names_in(checkpoint, network), TEXTS, lambda count: None)


def balanced(source: Source) -> Source:
    network, statistics = read_network(source.config), statistics_of(source)
    return TransformedSource(source, network, lambda named: balancing_edits(named, statistics), source.config)


def sources(family: str, make_oracle: MakeOracle, folder: Path) -> Source:
    if family == "hybrid":
        make_hybrid(folder, gain=0.4)
        return FolderSource(folder)
    return FolderSource(make_oracle(family, **FAMILIES[family])[1])


@pytest.mark.parametrize("family", [*FAMILIES, "hybrid"])
@pytest.mark.parametrize("planted", [False, True])
def test_logits_stay(family: str, planted: bool, make_oracle: MakeOracle, tmp_path: Path) -> None:
    source = sources(family, make_oracle, tmp_path / "hybrid")
    expected = logits_of(source)
    if planted:
        source = with_outliers(source, read_network(source.config), OutlierPlan(), 3)
    evened = balanced(source)
    assert relative_error(expected, logits_of(evened)) < LIMIT
    changed = [name for name in evened_names(evened) if not np.array_equal(*both(source, evened, name))]
    assert changed  # or nothing has been tested


def evened_names(source: Source) -> list[str]:
    with source.tensors() as checkpoint:
        return [name for name in checkpoint.unused() if "self_attn" in name]


def both(first: Source, second: Source, name: str) -> list[np.ndarray]:
    found = []
    for source in (first, second):
        with source.tensors() as checkpoint:
            found.append(checkpoint.tensor(name, checkpoint.shape(name)))
    return found


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_channels_of_all_heads_reach_as_far(family: str, make_oracle: MakeOracle) -> None:
    plain = FolderSource(make_oracle(family, **FAMILIES[family])[1])
    source = with_outliers(plain, read_network(plain.config), OutlierPlan(), 3)
    before, after = statistics_of(source), statistics_of(balanced(source))
    for layer, seen in after.items():
        reach = seen.keys.max(axis=0) if family == "Qwen3" else seen.keys  # norms share their gains
        np.testing.assert_allclose(reach, np.median(reach), rtol=1e-4)
        sizes, reads = (np.sqrt(np.square(part).mean(axis=1)) for part in (seen.values, seen.reads))
        np.testing.assert_allclose(sizes, sizes.mean(), rtol=1e-4)
        # Of each head a channel is as large beside the others as the columns that read it.
        np.testing.assert_allclose(seen.values / sizes[:, None], seen.reads / reads[:, None], rtol=1e-3)
        np.testing.assert_allclose(np.square(seen.values).mean(), np.square(before[layer].values).mean(), rtol=1e-4)


@pytest.mark.parametrize("family", ["Llama", "Phi3"])
def test_a_channel_of_a_feed_forward_that_stands_out_is_divided(family: str, make_oracle: MakeOracle) -> None:
    source = FolderSource(make_oracle(family, **FAMILIES[family])[1])
    network = read_network(source.config)
    reach = all_statistics_of(source)[1].inner[1]
    assert smoothing_edits(network, {1: reach}) == {}
    factor = np.ones(len(reach))
    factor[3] = 2 * STANDS_OUT * reach.max() / reach[3]
    names = network.details.names
    up = factor if len(names.gate_up) == 2 else np.concatenate([np.ones(len(factor)), factor])
    edits = {
        names.gate_up[-1].format(layer=1): LinearEdit(output_scale=up),
        names.down.format(layer=1): LinearEdit(input_scale=1 / factor),
    }
    planted = TransformedSource(source, network, lambda _: Edits({}, edits), source.config)
    before = all_statistics_of(planted)[1].inner
    smooth = TransformedSource(planted, network, lambda _: Edits({}, smoothing_edits(network, before)), source.config)
    after = all_statistics_of(smooth)[1].inner
    np.testing.assert_allclose(after[1][3], before[1][3] / SMOOTHED, rtol=1e-4)
    np.testing.assert_allclose(np.delete(after[1], 3), np.delete(before[1], 3), rtol=1e-3, atol=1e-6)
    assert relative_error(logits_of(source), logits_of(smooth)) < LIMIT


def test_the_factors_of_values_have_the_least_product_of_errors() -> None:
    """Of one head: no other factors give less of sum (v / f)² times sum (w f)²."""
    generator = np.random.default_rng(0)
    values, reads = (generator.uniform(0.1, 4, (1, 16)).astype(np.float32) for _ in range(2))
    best = value_factors(HeadStatistics(values, values, reads))

    def product(factors: np.ndarray) -> float:
        return float(np.square(values / factors).sum() * np.square(reads * factors).sum())

    assert product(best) == pytest.approx(float((values * reads).sum()) ** 2, rel=1e-5)
    assert all(product(best) <= product(best * generator.uniform(0.8, 1.25, (1, 16))) for _ in range(100))


def test_channels_that_text_does_not_show_stay_in_bounds() -> None:
    sizes = np.array([[1.0, 1e-9, 0.0, 1.0], [2.0, 1e9, 1.0, 1.0]], np.float32)
    seen = HeadStatistics(sizes, sizes, np.ones((2, 4), np.float32))
    for factors in (key_factors(seen, False), key_factors(seen, True)):
        assert factors.min() >= 1 / LARGEST and factors.max() <= LARGEST
    assert np.isfinite(value_factors(seen)).all() and (value_factors(seen) > 0).all()
    silent = HeadStatistics(np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32), sizes)
    for factors in (key_factors(silent, False), value_factors(silent)):
        assert np.array_equal(factors, np.ones((2, 4)))


@pytest.mark.parametrize("family", FAMILIES)
def test_statistics_are_those_of_the_keys_and_values(
    family: str, make_oracle: MakeOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the tensors inside the float definition: turned keys lie within their radius, and reach it nearly."""
    source = FolderSource(make_oracle(family, **FAMILIES[family])[1])
    network = read_network(source.config)
    rotations: list[np.ndarray] = []
    rotate = attention._rotate

    def noted(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        rotations.append(rotate(x, cos, sin))
        return rotations[-1]

    with monkeypatch.context() as patch:
        patch.setattr(attention, "_rotate", noted)
        for text in TEXTS:
            with source.tensors() as checkpoint:
                reference_hidden(checkpoint, names_in(checkpoint, network), np.array(text))
    layers, half = network.spec.layers, network.spec.rope.rotary_dim // 2
    for layer, seen in statistics_of(source).items():
        keys = [rotations[2 * (text * layers + layer) + 1] for text in range(len(TEXTS))]  # [K, T, D]
        joined = np.concatenate(keys, axis=1)
        radius = np.hypot(joined[..., :half], joined[..., half : 2 * half]).max(axis=1)
        np.testing.assert_allclose(seen.keys[:, : 2 * half], np.concatenate([radius, radius], axis=1), rtol=1e-3)
        np.testing.assert_allclose(seen.keys[:, 2 * half :], np.abs(joined[..., 2 * half :]).max(axis=1), rtol=1e-3)
