"""Channel scales leave the float network as it is, and undo planted outliers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.compile.calibrated.channels import ChannelScales, balanced_scales
from engine.compile.calibrated.choose import embedded
from engine.compile.checkpoint import Checkpoint
from engine.compile.reference import reference_logits
from engine.compile.source import FolderSource, Source
from engine.compile.transforms.checkpoint import TransformedCheckpoint
from engine.compile.transforms.edits import Edits
from engine.compile.transforms.outliers import OutlierPlan
from engine.compile.transforms.source import with_outliers
from engine.models.family import read_network
from engine.models.network import Network
from tests.engine.compile.calibrated.texts import SYMMETRIC, random_texts
from tests.hybrid import make_hybrid

MakeOracle = Callable[..., tuple[Any, Path]]
TOKENS = np.array(random_texts(1, 24)[0])
PLAN = OutlierPlan(channels=2, columns=2, values=1, ffn=2)


def scaled(checkpoint: Checkpoint, network: Network) -> tuple[Checkpoint, Edits]:
    states = embedded(checkpoint, network, random_texts(4, 40))
    edits = ChannelScales(checkpoint, network, SYMMETRIC).edits(states, lambda _: None)
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
        np.testing.assert_allclose(reference_logits(changed, network, TOKENS), expected, atol=1e-4)


def test_planted_outliers_are_undone(make_oracle: MakeOracle) -> None:
    """Columns are nearly what they are without them, up to the choice of alpha; planted ones are of 8 and 32."""
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
        np.testing.assert_allclose(scales[living], wanted / np.median(wanted), rtol=1e-2)
        assert scales[3] == scales[5] == 1
    assert (balanced_scales(np.zeros(4), columns[:4], 0.5) == 1).all()
