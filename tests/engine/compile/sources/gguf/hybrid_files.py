"""What llama.cpp's converter makes of Qwen3.5 and Granite 4: facts of recurrent layers, other orders and values."""

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
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")


def mamba2_tensor(config: dict[str, Any], name: str, value: Floats) -> tuple[str, Floats]:
    """As `hybrid_tensor`."""
    if name.endswith("mamba.A_log"):
        return name, -np.exp(value)[:, None]
    if name.endswith("mamba.D"):
        return name, value[:, None]
    if name.endswith("mamba.norm.weight"):
        return name, value.reshape(config["mamba_n_groups"], -1)
    if name.endswith("mamba.conv1d.weight"):
        return name, value[:, 0]
    return name.replace("mamba.dt_bias", "mamba.dt_proj.bias"), value


def tiled(value: Floats, key_heads: int, value_heads: int, width: int) -> Floats:
    """Rows by key head and then by value head, as rows by value head and then by key head."""
    heads = value.reshape(key_heads, value_heads // key_heads, width, -1)
    return np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(value.shape)
