"""Rotations leave the function of every family as it is, and flatten its weights and activations."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import load_file, save_file

from engine.compile.quantisation.transforms.rotation import rotation_edits
from engine.compile.sources.source import FolderSource, Source, open_source
from engine.demo.location import demo_folder
from engine.models.family import read_network
from tests.engine.compile.quantisation.transforms.logits import LIMIT, linear_inputs, logits_of, relative_error
from tests.engine.compile.quantisation.transforms.outliers import OutlierPlan, with_outliers
from tests.engine.compile.quantisation.transforms.rotated_source import rotated
from tests.engine.compile.sources.gguf.gguf_files import write_gguf
from tests.hybrid import make_hybrid

MakeOracle = Callable[..., tuple[Any, Path]]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "Mistral": {"sliding_window": None},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 32, "tie_word_embeddings": True},
    "Phi3": {},
}


def rotation_of(source: Source, seed: int = 5) -> Source:
    return rotated(source, read_network(source.config), seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_each_family_stay(family: str, make_oracle: MakeOracle) -> None:
    _, folder = make_oracle(family, **FAMILIES[family])
    expected = logits_of(FolderSource(folder))
    assert relative_error(expected, logits_of(rotation_of(FolderSource(folder)))) < LIMIT


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_recurrent_layers_with_a_norm_offset_stay(tied: bool, tmp_path: Path) -> None:
    make_hybrid(tmp_path / "model", gain=0.4, tie_word_embeddings=tied)
    source = FolderSource(tmp_path / "model")
    assert relative_error(logits_of(source), logits_of(rotation_of(source))) < LIMIT


@pytest.mark.parametrize("hidden", [48, 56, 92, 120])
def test_logits_stay_where_the_width_has_an_odd_factor(hidden: int, make_oracle: MakeOracle) -> None:
    _, folder = make_oracle("Qwen3", hidden_size=hidden, head_dim=24, tie_word_embeddings=True)
    source = FolderSource(folder)
    assert relative_error(logits_of(source), logits_of(rotation_of(source))) < LIMIT


def test_logits_of_the_embedded_model_stay() -> None:
    source = FolderSource(demo_folder())
    assert relative_error(logits_of(source), logits_of(rotation_of(source))) < LIMIT


def test_a_checkpoint_without_the_first_part_of_its_names(make_oracle: MakeOracle) -> None:
    model, folder = make_oracle("Qwen3", head_dim=32, tie_word_embeddings=True)
    expected = logits_of(FolderSource(folder))
    model.model.save_pretrained(folder)
    assert relative_error(expected, logits_of(rotation_of(FolderSource(folder)))) < LIMIT


def test_both_rotations_reach_the_weights(make_oracle: MakeOracle) -> None:
    _, folder = make_oracle("Qwen3", head_dim=32, tie_word_embeddings=True)
    plain, turned = FolderSource(folder), rotation_of(FolderSource(folder))
    values, keys = (f"model.layers.1.self_attn.{name}_proj.weight" for name in "vk")
    with plain.tensors() as before, turned.tensors() as after:
        assert np.array_equal(after.tensor("model.norm.weight", (64,)), np.ones(64, np.float32))
        for name in (EMBEDDING, values, keys):
            shape = before.shape(name)
            assert not np.allclose(before.tensor(name, shape), after.tensor(name, shape), atol=0.01)


def test_any_rows_are_those_of_the_whole_matrix(make_oracle: MakeOracle) -> None:
    _, folder = make_oracle("Phi3")
    with rotation_of(FolderSource(folder)).tensors() as checkpoint:
        for module in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"):
            name = f"model.layers.0.{module}.weight"
            whole = checkpoint.tensor(name, checkpoint.shape(name))
            for start in range(0, len(whole), 7):
                rows = checkpoint.rows(name, start, min(start + 7, len(whole)))
                assert np.allclose(rows, whole[start : start + 7], atol=1e-6)


def test_a_tied_head_gets_weights_of_its_own(make_oracle: MakeOracle) -> None:
    _, folder = make_oracle("Qwen2", tie_word_embeddings=True)
    source = rotation_of(FolderSource(folder))
    assert read_network(FolderSource(folder).config).spec.tied_head
    assert not read_network(source.config).spec.tied_head
    with FolderSource(folder).tensors() as stored, source.tensors() as checkpoint:
        assert HEAD not in stored
        assert HEAD in checkpoint
        assert checkpoint.total_bytes() == stored.total_bytes() + stored.stored_bytes(EMBEDDING)
        embedding, head = (checkpoint.tensor(name, (384, 64)) for name in (EMBEDDING, HEAD))
    assert not np.allclose(embedding, head, atol=0.01)  # the final norm's scale is in one of them


def test_a_stored_head_that_the_config_ties_stays_unread(make_oracle: MakeOracle) -> None:
    _, folder = make_oracle("Qwen2", tie_word_embeddings=True)
    expected = logits_of(FolderSource(folder))
    path = folder / "model.safetensors"
    save_file(load_file(path) | {HEAD: np.full((384, 64), 9.0, np.float32)}, path)
    assert relative_error(expected, logits_of(rotation_of(FolderSource(folder)))) < LIMIT


def test_a_nested_config_loses_its_tie_as_well(tmp_path: Path) -> None:
    make_hybrid(tmp_path)
    flat = json.loads((tmp_path / "config.json").read_text())
    nested = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": flat, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    assert read_network(FolderSource(tmp_path).config).spec.tied_head
    assert not read_network(rotation_of(FolderSource(tmp_path)).config).spec.tied_head


def test_stored_blocks_are_not_kept_where_they_are_turned(tiny_checkpoint: Path, tmp_path: Path) -> None:
    stored = open_source(write_gguf(tiny_checkpoint, tmp_path / "m.gguf", GGMLQuantizationType.Q4_0))
    turned, name = rotation_of(stored), "model.layers.0.mlp.down_proj.weight"
    with stored.tensors() as before, turned.tensors() as after:
        assert before.form(name) is not None
        assert before.blocks(name, 0, 8) is not None
        assert after.form(name) is None
        assert after.blocks(name, 0, 8) is None
    assert relative_error(logits_of(stored), logits_of(turned)) < LIMIT


def test_each_layer_turns_its_values_by_a_rotation_of_its_own(tiny_checkpoint: Path) -> None:
    edits = rotation_edits(read_network(FolderSource(tiny_checkpoint).config), 5)
    turns = [edits.linears[f"model.layers.{layer}.self_attn.v_proj"].output_rotation for layer in range(2)]
    first, second = (turn.turn(np.eye(16)) for turn in turns if turn is not None)
    assert not np.allclose(first, second)


def test_rotations_take_planted_outliers_away(monkeypatch: pytest.MonkeyPatch) -> None:
    source = FolderSource(demo_folder())
    network = read_network(source.config)
    planted = with_outliers(source, network, OutlierPlan(), 3)
    assert linear_inputs(planted, monkeypatch)["v_proj"] > 20
    assert linear_inputs(rotation_of(planted), monkeypatch)["v_proj"] < 5
