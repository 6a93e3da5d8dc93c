"""adapter_config.json: scale and rank of every matrix, and what is refused by the name of its key."""

import json
import math
from pathlib import Path

import pytest

from engine.adapters.adapter import AdapterConfig, read_adapter_config
from engine.errors import BundleError

BASE: dict[str, object] = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none"}
# As PEFT 0.18 writes it, where nothing out of the ordinary was asked for.
WRITTEN: dict[str, object] = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": None,
    "base_model_name_or_path": "Qwen/Qwen3-0.6B",
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": [0, 1],
    "loftq_config": {},
    "lora_alpha": 32,
    "lora_bias": False,
    "lora_dropout": 0.1,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "peft_version": "0.18.0",
    "qalora_group_size": 16,
    "r": 64,
    "rank_pattern": {},
    "revision": None,
    "target_modules": ["v_proj", "q_proj"],
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
}


def read(folder: Path, values: object) -> AdapterConfig:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(values))
    return read_adapter_config(path)


def test_what_peft_writes(tmp_path: Path) -> None:
    config = read(tmp_path, WRITTEN)
    assert (config.rank_of("model.layers.0.self_attn.q_proj"), config.scale_of("any")) == (64, 0.5)


def test_rslora_divides_by_the_root(tmp_path: Path) -> None:
    assert read(tmp_path, BASE | {"use_rslora": True}).scale_of("any") == 16 / math.sqrt(8)


def test_patterns_are_ends_of_paths(tmp_path: Path) -> None:
    patterns = {"rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 32}, "alpha_pattern": {"layers.1.mlp.up_proj": 1}}
    config = read(tmp_path, BASE | patterns)
    paths = ["layers.1.self_attn.q_proj", "layers.1.mlp.up_proj", "layers.11.mlp.up_proj", "layers.1.xq_proj"]
    assert [config.rank_of(path) for path in paths] == [2, 32, 8, 8]
    assert [config.scale_of(path) for path in paths] == [8, 1 / 32, 2, 2]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"use_dora": True}, "use_dora = True is not supported"),
        ({"bias": "all"}, "bias = 'all' is not supported"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save = \['lm_head'\] is not supported"),
        ({"lora_bias": True}, "lora_bias = True is not supported"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out = True is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa' is not supported"),
        ({"trainable_token_indices": [3]}, r"trainable_token_indices = \[3\] is not supported"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"target_parameters": ["experts"]}, "target_parameters"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"of_a_later_version": 7}, "of_a_later_version = 7 is not supported"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3' is not supported"),
        ({"r": 0}, "r must be a whole number above 0 and up to 512, it is 0"),
        ({"r": 513}, "it is 513"),
        ({"r": True}, "it is True"),
        ({"r": 8.0}, "it is 8.0"),
        ({"r": None}, "it is None"),
        ({"r": 10**400}, "it is an integer of 1329 bits"),
        ({"lora_alpha": "8"}, "lora_alpha must be a number above 0 and up to 1e.06, it is '8'"),
        ({"lora_alpha": -1}, "it is -1"),
        ({"use_rslora": 3}, "use_rslora must be true or false, it is 3"),
        ({"rank_pattern": [1]}, "rank_pattern must hold a JSON object"),
        ({"rank_pattern": {"(a+)+$": 4}}, r"rank_pattern has '\(a\+\)\+\$', which is no plain path of a module"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern.q_proj must be a whole number"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern.q_proj must be a number"),
    ],
)
def test_what_is_refused_by_name(tmp_path: Path, changed: dict[str, object], told: str) -> None:
    with pytest.raises(BundleError, match=rf"adapter_config.json: {told}" if not told.startswith("it is") else told):
        read(tmp_path, BASE | changed)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read: No such file"):
        read_adapter_config(tmp_path / "adapter_config.json")
    with pytest.raises(BundleError, match="must hold a JSON object"):
        read(tmp_path, [])
    with pytest.raises(BundleError, match="has no peft_type"):
        read(tmp_path, {"r": 8, "lora_alpha": 16})
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(BundleError, match="it is not JSON"):
        read_adapter_config(tmp_path / "adapter_config.json")
