"""What llama.cpp's converter makes of Qwen3.5 and of Mamba2: facts of recurrent layers, other orders and values."""

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
VALUE_ROWS = {"in_proj_z": "linear_value_head_dim", "in_proj_a": "", "in_proj_b": "", "A_log": "", "dt_bias": ""}


def add_hybrid_facts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Sizes of recurrent layers, the part of a head that turns, and layers that draft."""
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    writer.add_full_attention_interval(config.get("full_attention_interval", 4))
    writer.add_rope_dimension_count(int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    if config.get("mtp_num_hidden_layers"):
        writer.add_nextn_predict_layers(config["mtp_num_hidden_layers"])


def hybrid_tensor(config: dict[str, Any], name: str, value: Floats) -> tuple[str, Floats]:
    """A tensor as it is stored, and the name that the package's table of names knows."""
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    width = config["linear_value_head_dim"]
    mixed = 2 * key_heads * config["linear_key_head_dim"]
    module = name.removesuffix(".weight").rpartition(".")[2]
    if module in VALUE_ROWS:
        value = tiled(value, key_heads, value_heads, config[VALUE_ROWS[module]] if VALUE_ROWS[module] else 1)
    elif module in ("in_proj_qkv", "conv1d"):
        value = np.concatenate([value[:mixed], tiled(value[mixed:], key_heads, value_heads, width)])
    elif module == "out_proj":
        value = np.ascontiguousarray(tiled(value.T, key_heads, value_heads, width).T)
    if module == "A_log":
        value = -np.exp(value)
    elif module == "dt_bias":
        name = name.replace("dt_bias", "dt_proj.bias")
    elif module == "conv1d":
        value = value[:, 0]
    elif name.endswith("norm.weight") and "linear_attn" not in name:
        value = value + np.float32(1)
    return name, value


def add_mamba2_facts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Sizes of Mamba2 layers, and whether those with attention know positions."""
    inner = config.get("mamba_d_ssm") or config.get("mamba_expand", 2) * config["hidden_size"]
    if config["model_type"] == "nemotron_h":
        inner = config["mamba_num_heads"] * config["mamba_head_dim"]
    writer.add_ssm_conv_kernel(config.get("mamba_d_conv") or config["conv_kernel"])
    writer.add_ssm_state_size(config.get("mamba_d_state") or config["ssm_state_size"])
    writer.add_ssm_group_count(groups_of(config))
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_time_step_rank(config.get("mamba_n_heads") or config["mamba_num_heads"])
    if config["model_type"] != "falcon_h1":
        writer.add_rope_scaling_finetuned(config.get("position_embedding_type") == "rope")


def groups_of(config: dict[str, Any]) -> int:
    """Heads of keys."""
    return int(config.get("mamba_n_groups") or config["n_groups"])


def mamba2_tensor(config: dict[str, Any], name: str, value: Floats) -> tuple[str, Floats]:
    """As `hybrid_tensor`; of Falcon-H1 times its constants."""
    if config["model_type"] == "falcon_h1":
        value = value * multiplier(config, name, len(value)).reshape(-1, *[1] * (value.ndim - 1))
    tensor = name.rpartition(".mamba." if ".mamba." in name else ".mixer.")[2]
    if tensor == "A_log":
        return name, -np.exp(value)[:, None]
    if tensor == "D":
        return name, value[:, None]
    if tensor == "norm.weight":
        return name, value.reshape(groups_of(config), -1)
    if tensor == "conv1d.weight":
        return name, value[:, 0]
    return name.replace("dt_bias", "dt_proj.bias" if ".mamba." in name else "dt.bias"), value


def multiplier(config: dict[str, Any], name: str, rows: int) -> Floats:
    """What Falcon-H1's converter multiplies each row of a matrix with."""
    of_input = config["attention_in_multiplier"]
    single = {
        "embed_tokens": config["embedding_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "gate_proj": config["mlp_multipliers"][0],
        "down_proj": config["mlp_multipliers"][1],
        "q_proj": of_input,
        "k_proj": of_input * config["key_multiplier"],
        "v_proj": of_input,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
    }
    module = name.removesuffix(".weight").rpartition(".")[2]
    if module != "in_proj":
        return np.full(rows, single.get(module, 1.0), np.float32)
    values, keys = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    sizes = (values, values, keys, keys, config["mamba_n_heads"])
    return np.repeat(np.float32(config["ssm_multipliers"]), sizes) * np.float32(config["ssm_in_multiplier"])


def tiled(value: Floats, key_heads: int, value_heads: int, width: int) -> Floats:
    """Rows by key head and then by value head, as rows by value head and then by key head."""
    heads = value.reshape(key_heads, value_heads // key_heads, width, -1)
    return np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(value.shape)
