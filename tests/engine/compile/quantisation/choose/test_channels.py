"""Channel scales leave the float network as it is, and undo planted outliers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.compile.calibration.forward import embedded, reference_logits
from engine.compile.quantisation.choose.channels import ALPHAS, ChannelScales, balanced_scales, searched_scales
from engine.compile.quantisation.choose.form import compensated_codes
from engine.compile.quantisation.rounding.codes import damped
from engine.compile.quantisation.rounding.gptq import factorised
from engine.compile.quantisation.transforms.rotation import Edits
from engine.compile.quantisation.transforms.transformed import TransformedCheckpoint
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.source import FolderSource, Source
from engine.models.family import read_network
from engine.models.network import Network
from tests.engine.compile.quantisation.choose.texts import SYMMETRIC, random_texts
from tests.engine.compile.quantisation.transforms.outliers import OutlierPlan, with_outliers
from tests.hybrid import make_hybrid

MakeOracle = Callable[..., tuple[Any, Path]]
MANY = 1_000_000  # tokens
TOKENS = np.array(random_texts(1, 24)[0])
PLAN = OutlierPlan(channels=2, columns=2, values=1, ffn=2)


def scaled(checkpoint: Checkpoint, network: Network) -> tuple[Checkpoint, Edits]:
    states = embedded(checkpoint, network, random_texts(4, 40))
    edits = ChannelScales(checkpoint, network, SYMMETRIC, MANY).edits(states, lambda _: None)
    return TransformedCheckpoint(checkpoint, edits, network.details.norm_offset), edits


def check_stays(folder: Path) -> None:
    """Of a network that has outliers."""
    plain = FolderSource(folder)
    network = read_network(plain.config)
    source = with_outliers(plain, network, PLAN, 3)
    with source.tensors() as checkpoint:
        expected = reference_logits(checkpoint, network, TOKENS)
        changed, edits = scaled(checkpoint, network)
        assert any((edit.input_scale != 1).any() for edit in edits.linears.values() if edit.input_scale is not None)
        found = reference_logits(changed, network, TOKENS)
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Phi3"])
def test_logits_of_each_family_stay(family: str, make_oracle: MakeOracle) -> None:
    options = {"attention_bias": True, "mlp_bias": True} if family == "Llama" else {}
    check_stays(make_oracle(family, **options)[1])


def test_logits_of_recurrent_layers_with_a_norm_offset_stay(tmp_path: Path) -> None:
    make_hybrid(tmp_path, gain=0.4)
    source = FolderSource(tmp_path)
    network = read_network(source.config)
    with source.tensors() as checkpoint:
        expected = reference_logits(checkpoint, network, TOKENS)
        changed, _ = scaled(checkpoint, network)
        found = reference_logits(changed, network, TOKENS)
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_planted_outliers_are_undone(make_oracle: MakeOracle) -> None:
    """Columns are what they are without them, but for one factor of all."""
    _, folder = make_oracle("Qwen3", head_dim=32, tie_word_embeddings=True)
    source = FolderSource(folder)
    planted = with_outliers(source, read_network(source.config), PLAN, 3)
    plain, undone = (weights(each) for each in (source, planted))
    for name, weight in plain.items():
        if name.endswith(("up_proj.weight", "v_proj.weight")):  # their rows are divided, which costs nothing
            continue
        ratios = undone[name] / weight
        np.testing.assert_allclose(ratios, np.median(ratios), rtol=1e-3, err_msg=name)


def weights(source: Source) -> dict[str, np.ndarray]:
    network = read_network(source.config)
    with source.tensors() as checkpoint:
        changed, _ = scaled(checkpoint, network)
        modules = ("q_proj", "k_proj", "v_proj", "o_proj")
        names = [f"model.layers.1.self_attn.{module}.weight" for module in modules]
        names += [f"model.layers.1.mlp.{module}_proj.weight" for module in ("gate", "up", "down")]
        return {name: changed.tensor(name, changed.shape(name)) for name in names}


def test_scales_are_what_they_are_defined_as_around_one() -> None:
    random = np.random.default_rng(0)
    sizes, columns = random.gamma(0.5, size=64), random.gamma(2.0, size=64)
    sizes[3] = columns[5] = 0
    living = sizes * columns > 0
    for alpha in (0.0, 0.5, 1.0):
        scales = balanced_scales(sizes, columns, alpha)
        wanted = sizes[living] ** alpha / columns[living] ** (1 - alpha)
        np.testing.assert_allclose(scales[living], wanted / np.exp2(np.median(np.log2(wanted))), rtol=1e-9)
        assert scales[3] == scales[5] == 1
    assert (balanced_scales(np.zeros(4), columns[:4], 0.5) == 1).all()


def uneven_case(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix [48, 64] and inputs of it [300, 64], both with columns of very different sizes."""
    random = np.random.default_rng(seed)
    shared = random.standard_normal((300, 6)) @ random.standard_normal((6, 64)) * random.uniform(0, 2)
    x = (shared + random.standard_normal((300, 64))) * (np.exp(random.standard_normal(64)))
    weight = random.standard_normal((48, 64)) * np.exp(random.standard_normal(64) * random.uniform(0, 1))
    return weight.astype(np.float32), x.astype(np.float32)


def errors_by_definition(weight: np.ndarray, x: np.ndarray, damping: float) -> list[float]:
    """Of each alpha: rows whose outputs have one size, their columns times the scales, by GPTQ."""
    hessian = 2 * x.astype(np.float64).T @ x
    weight = weight / np.sqrt(np.einsum("oi,ij,oj->o", weight, np.diag(np.diagonal(hessian)), weight))[:, None]
    sizes, columns = np.sqrt(np.diagonal(hessian)), np.sqrt(np.square(weight).mean(axis=0))
    found = []
    for alpha in ALPHAS:
        scales = balanced_scales(sizes, columns, alpha)
        # Damped where columns are alike, then scaled on from there.
        alike = balanced_scales(sizes, columns, ALPHAS[0])
        even = damped(hessian / np.outer(alike, alike), damping)
        factor = factorised(even, 32, damping=1e-9).divided(scales / alike)
        codes = compensated_codes((weight * scales).astype(np.float32), factor, SYMMETRIC)
        away = weight - codes.floats() / scales
        found.append(float(np.einsum("oi,ij,oj->", away, hessian, away)))
    return found


@pytest.mark.parametrize(("tokens", "damping"), [(MANY, 0.01), (640, 0.05)])
def test_the_alpha_is_that_of_the_least_error_of_gptq(tokens: int, damping: float) -> None:
    chosen = set()
    for seed in range(20):
        weight, x = uneven_case(seed)
        errors = np.array(errors_by_definition(weight, x, damping))
        best = int(errors.argmin())
        if np.delete(errors, best).min() < 1.02 * errors[best]:
            continue
        alike = weight / np.sqrt(np.square(weight * np.sqrt(2 * np.square(x).sum(axis=0))).mean(axis=1, keepdims=True))
        sizes, columns = np.sqrt(2 * np.square(x).sum(axis=0)), np.sqrt(np.square(alike).mean(axis=0))
        np.testing.assert_allclose(
            searched_scales(weight, [x], SYMMETRIC, tokens), balanced_scales(sizes, columns, ALPHAS[best]), rtol=1e-3
        )
        chosen.add(best)
    assert len(chosen) > 1


def test_a_row_that_is_only_large_has_no_say() -> None:
    weight, x = uneven_case(3)
    larger = weight * np.where(np.arange(len(weight)) == 7, np.float32(100), np.float32(1))[:, None]
    found, expected = (searched_scales(each, [x], SYMMETRIC, MANY) for each in (larger, weight))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
