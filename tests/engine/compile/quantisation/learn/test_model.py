"""Scales learned end to end: what is made small is what the numpy definition finds, by its gradient."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.compile.calibration.forward import reference_logits
from engine.compile.calibration.statistics import divergences, log_softmax
from engine.compile.quantisation.learn import learner as model
from engine.compile.quantisation.learn.learner import learn_scales
from engine.compile.quantisation.learn.learning_plan import LearningRates
from engine.compile.quantisation.learn.torch_network import head_module, linear_modules
from engine.compile.quantisation.rounding.codes import BlockCodes, Coding, extreme_scales, rounded
from engine.compile.quantisation.rounding.lpbq import reaching_scales
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.source import FolderSource
from engine.models.family import read_network
from engine.models.network import Network
from tests.engine.compile.quantisation.rounding.multiples import nearest_multiples

Codes = dict[str, BlockCodes]
MakeOracle = Callable[..., tuple[Any, Path]]
TEXTS = [np.random.default_rng(seed).integers(0, 256, 24).tolist() for seed in range(40)]
HELD_BACK = slice(1, None, 8)
ROUNDS = (LearningRates(steps=12, scales=1e-2, places=0.0),)
BLOCK = 16


class Coded:
    """A checkpoint in which some matrices are what their codes stand for."""

    def __init__(self, inner: Checkpoint, codes: Codes) -> None:
        self._inner, self._codes = inner, codes

    def __contains__(self, name: str) -> bool:
        return name in self._inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def tensor(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return self._codes[name].floats() if name in self._codes else self._inner.tensor(name, shape)

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        return self.tensor(name, self._inner.shape(name))[start:stop]


@contextmanager
def coded_model(
    make_oracle: MakeOracle, multiples: bool
) -> Iterator[tuple[Network, Checkpoint, dict[str, BlockCodes]]]:
    _, folder = make_oracle("Qwen3", head_dim=16, num_hidden_layers=2, tie_word_embeddings=False)
    source = FolderSource(folder)
    network = read_network(source.config)
    with source.tensors() as checkpoint:
        modules = [module for layer in range(network.spec.layers) for module in linear_modules(network, layer)]
        codes = {}
        for name in (f"{module}.weight" for module in (*modules, head_module(network))):
            weight = checkpoint.tensor(name, checkpoint.shape(name))
            grid = extreme_scales(weight, BLOCK, Coding.SYMMETRIC)
            if multiples:
                grid = nearest_multiples(reaching_scales(weight, BLOCK), BLOCK)
            codes[name] = rounded(weight, grid)
        yield network, checkpoint, codes


def divergence(network: Network, checkpoint: Checkpoint, codes: Codes, texts: list[list[int]]) -> float:
    """Mean of texts of the same length."""
    found = []
    for text in texts:
        both = (reference_logits(each, network, np.array(text)) for each in (checkpoint, Coded(checkpoint, codes)))
        found.append(divergences(*map(log_softmax, both)))
    return float(np.mean(found))


def surprise(network: Network, checkpoint: Checkpoint, codes: Codes, texts: list[list[int]]) -> float:
    """Cross entropy, the mean over tokens of texts of the same length."""
    found = []
    for text in texts:
        predictions = log_softmax(reference_logits(Coded(checkpoint, codes), network, np.array(text)))
        found.append(-predictions[np.arange(len(text) - 1), text[1:]])
    return float(np.mean(found))


@pytest.mark.parametrize("multiples", [False, True], ids=["scales", "units"])
def test_divergence_falls_with_codes_as_they_were(make_oracle: MakeOracle, multiples: bool) -> None:
    with coded_model(make_oracle, multiples) as (network, checkpoint, codes):
        with_units = codes if multiples else ()
        learned = learn_scales(network, checkpoint, codes, TEXTS, with_units=with_units, rounds=ROUNDS, text_share=0)
        before, after = (divergence(network, checkpoint, each, TEXTS[HELD_BACK]) for each in (codes, learned.codes))
    assert before == pytest.approx(learned.before, rel=1e-3)
    assert after == pytest.approx(learned.after, rel=1e-3)
    assert after < 0.97 * before
    for name, given in codes.items():
        found = learned.codes[name]
        assert np.array_equal(found.codes, given.codes)
        factors = found.grid.scales / given.grid.scales
        assert np.all(factors > 0)
        assert np.ptp(factors, axis=1).max() < 1e-6 or not multiples


@pytest.mark.parametrize(("text_share", "error"), [(0.0, divergence), (1e6, surprise)], ids=["KL", "cross entropy"])
def test_a_step_goes_down_the_slope_that_finite_differences_find(
    make_oracle: MakeOracle, text_share: float, error: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam's first step has the size of its rate in every scale: its sign is that of the slope."""
    monkeypatch.setattr(model, "MOST_DIVERGENCE", math.inf)
    with coded_model(make_oracle, False) as (network, checkpoint, codes):
        # All texts but the one held back in one batch, so that a step's gradient is that of their mean.
        rounds = (LearningRates(1, 1e-2, 0.0),)
        learned = learn_scales(network, checkpoint, codes, TEXTS[:2], rounds=rounds, text_share=text_share)
        name = f"{linear_modules(network, 1)[-1]}.weight"
        moved = np.log(learned.codes[name].grid.scales / codes[name].grid.scales)
        assert np.abs(moved).max() > 0, "the step was not taken"
        slopes = np.zeros(4)
        for index in range(4):
            for sign in (1, -1):
                scales = codes[name].grid.scales.copy()
                scales[index] *= np.exp(sign * 3e-2 * np.sign(moved[index]))
                grid = type(codes[name].grid)(scales, None, BLOCK)
                changed = codes | {name: BlockCodes(codes[name].codes, grid, codes[name].inputs)}
                slopes[index] += sign * error(network, checkpoint, changed, TEXTS[:1])
    assert (slopes < 0).all()


def test_what_the_texts_tokens_win_may_cost_little_divergence(
    make_oracle: MakeOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with coded_model(make_oracle, False) as (network, checkpoint, codes):
        kept = learn_scales(network, checkpoint, codes, TEXTS, rounds=ROUNDS, text_share=1e6)
        monkeypatch.setattr(model, "MOST_DIVERGENCE", math.inf)
        taken = learn_scales(network, checkpoint, codes, TEXTS, rounds=ROUNDS, text_share=1e6)
    assert kept.after <= 1.01 * kept.before
    assert taken.after > 1.01 * taken.before


def test_the_same_texts_give_the_same_scales(make_oracle: MakeOracle) -> None:
    with coded_model(make_oracle, False) as (network, checkpoint, codes):
        first, second = (
            learn_scales(network, checkpoint, codes, TEXTS, rounds=(LearningRates(3, 5e-3, 0.0),)) for _ in range(2)
        )
    assert all(np.array_equal(first.codes[name].grid.scales, second.codes[name].grid.scales) for name in codes)
    assert torch.is_grad_enabled()
