"""Planted outliers: as far above the rest as those of large models, with every product as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.compile.sources.source import FolderSource
from engine.demo.location import demo_folder
from tests.engine.compile.quantisation.transforms.logits import LIMIT, linear_inputs, logits_of, relative_error
from tests.engine.compile.quantisation.transforms.outliers import OutlierPlan, plant_outliers
from tests.hybrid import make_hybrid

MakeOracle = Callable[..., tuple[Any, Path]]
PLAN = OutlierPlan()
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 32, "tie_word_embeddings": False},
    "Phi3": {},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_each_family_stay(
    family: str, make_oracle: MakeOracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = make_oracle(family, **FAMILIES[family])
    plant_outliers(folder, tmp_path / "planted", PLAN, seed=3)
    plain, planted = FolderSource(folder), FolderSource(tmp_path / "planted")
    assert relative_error(logits_of(plain), logits_of(planted)) < LIMIT
    before, after = linear_inputs(plain, monkeypatch), linear_inputs(planted, monkeypatch)
    for name, ratio in before.items():
        assert ratio < 10
        assert after[name] > 15


def test_logits_of_recurrent_layers_stay(tmp_path: Path) -> None:
    make_hybrid(tmp_path / "model", gain=0.4)
    plant_outliers(tmp_path / "model", tmp_path / "planted", PLAN)
    plain, planted = (FolderSource(tmp_path / name) for name in ("model", "planted"))
    assert relative_error(logits_of(plain), logits_of(planted)) < LIMIT


def test_the_embedded_model_gets_outliers_of_20_to_100_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_outliers(demo_folder(), tmp_path / "planted", PLAN, seed=1)
    plain, planted = FolderSource(demo_folder()), FolderSource(tmp_path / "planted")
    assert np.array_equal(logits_of(plain), logits_of(planted))
    before, after = linear_inputs(plain, monkeypatch), linear_inputs(planted, monkeypatch)
    for name in ("v_proj", "up_proj"):
        assert before[name] < 10
        assert 20 < after[name] < 100


def test_columns_of_weights_stand_out(make_oracle: MakeOracle, tmp_path: Path) -> None:
    _, folder = make_oracle("Qwen3", head_dim=32, tie_word_embeddings=False)
    plant_outliers(folder, tmp_path / "planted", OutlierPlan(channels=0, columns=2, values=0, ffn=0))
    with FolderSource(folder).tensors() as before, FolderSource(tmp_path / "planted").tensors() as after:
        for name in ("model.layers.0.self_attn.k_proj.weight", "model.layers.2.mlp.up_proj.weight", "lm_head.weight"):
            old, new = (checkpoint.tensor(name, before.shape(name)) for checkpoint in (before, after))
            assert sorted(np.unique((new / old).mean(axis=0)).tolist()) == [1.0, 8.0]
            assert int(np.sum(np.any(old != new, axis=0))) == 2
        for name in ("model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.down_proj.weight"):
            shape = before.shape(name)
            assert np.array_equal(before.tensor(name, shape), after.tensor(name, shape))
