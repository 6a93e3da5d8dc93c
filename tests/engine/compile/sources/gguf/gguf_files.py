"""GGUF files made of checkpoints, as llama.cpp's converter makes them."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine.compile.sources.checkpoint import SafetensorsCheckpoint
from engine.compile.sources.gguf.vocabulary import TokenKind
from tests.engine.compile.sources.gguf.hybrid_files import (
    add_hybrid_facts,
    add_mamba2_facts,
    hybrid_tensor,
    mamba2_tensor,
)

F32, F16, BF16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16
HYBRIDS = ("qwen35", "qwen35moe")
MAMBA2 = ("granitehybrid", "falcon-h1", "nemotron_h", "nemotron_h_moe")
MODEL_ARCHS = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen35": gguf.MODEL_ARCH.QWEN35,
    "qwen35moe": gguf.MODEL_ARCH.QWEN35MOE,
    "lfm2": gguf.MODEL_ARCH.LFM2,
    "lfm2moe": gguf.MODEL_ARCH.LFM2MOE,
    "granitemoe": gguf.MODEL_ARCH.GRANITE_MOE,
    "mistral3": gguf.MODEL_ARCH.MISTRAL3,
    "glm4moe": gguf.MODEL_ARCH.GLM4_MOE,
    "ernie4_5-moe": gguf.MODEL_ARCH.ERNIE4_5_MOE,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "qwen2moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3moe": gguf.MODEL_ARCH.QWEN3MOE,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "granitehybrid": gguf.MODEL_ARCH.GRANITE_HYBRID,
    "falcon-h1": gguf.MODEL_ARCH.FALCON_H1,
    "nemotron_h": gguf.MODEL_ARCH.NEMOTRON_H,
    "nemotron_h_moe": gguf.MODEL_ARCH.NEMOTRON_H_MOE,
    "hunyuan-dense": gguf.MODEL_ARCH.HUNYUAN_DENSE,
    "ernie4_5": gguf.MODEL_ARCH.ERNIE4_5,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "exaone4": gguf.MODEL_ARCH.EXAONE4,
    "glm4": gguf.MODEL_ARCH.GLM4,
    "chatglm": gguf.MODEL_ARCH.CHATGLM,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
    "gemma3n": gguf.MODEL_ARCH.GEMMA3N,
    "gemma4": gguf.MODEL_ARCH.GEMMA4,
    "deepseek2": gguf.MODEL_ARCH.DEEPSEEK2,
    "gpt-oss": gguf.MODEL_ARCH.GPT_OSS,
}
RENAMED = {
    "mistral": "llama",
    "ministral3": "mistral3",
    "mixtral": "llama",
    "olmo3": "olmo2",
    "hunyuandensev1": "hunyuan-dense",
    "ernie45": "ernie4_5",
    "ernie45moe": "ernie4_5-moe",
    "deepseekv2": "deepseek2",
    "glm4moelite": "deepseek2",
    "glm": "chatglm",
    "gptoss": "gpt-oss",
    "granitemoeshared": "granitemoe",
    "granitemoehybrid": "granitehybrid",
    "falconh1": "falcon-h1",
    "nemotronh": "nemotron_h",
}
TURNED = (
    "llama",
    "mistral3",
    "smollm3",
    "granite",
    "granitemoe",
    "granitehybrid",
    "nemotron_h",
    "nemotron_h_moe",
)  # the converter re-orders their queries and keys
MORE_NORMS = ("gemma", "gemma2", "gemma3")
LLAMA_3 = ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
INTERLEAVED = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
ROUTER_SCALES = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
Floats = NDArray[np.float32]


def write_gguf(
    source: Path,
    output: Path,
    kind: GGMLQuantizationType | Callable[[str], GGMLQuantizationType] = F32,
    pre: str = "gpt-2",
    change: Callable[[gguf.GGUFWriter], None] | None = None,
    quantize: Callable[[Floats, GGMLQuantizationType], NDArray[np.generic]] = gguf.quantize,
    part_tensors: int = 0,
) -> Path:
    """A checkpoint folder as one file. kind: of every matrix, or by its name in the file; vectors stay float32.

    change: adds to the header. quantize: makes bytes of rows. part_tensors: as files of so many tensors each.
    """
    config = json.loads((source / "config.json").read_text())
    name = config["architectures"][0].removesuffix("ForCausalLM").removesuffix("Model")
    architecture = name.lower().replace("_", "")
    architecture = RENAMED.get(architecture, architecture)
    if architecture == "granitehybrid" and "linear_attention" not in config["layer_types"]:
        architecture = "granite"
    if architecture == "nemotron_h" and "moe" in config["layers_block_type"]:
        architecture = "nemotron_h_moe"
    writer = gguf.GGUFWriter(output, architecture, split_max_tensors=part_tensors)
    add_facts(writer, config)
    if architecture in HYBRIDS:
        add_hybrid_facts(writer, config)
    if architecture in MAMBA2:
        add_mamba2_facts(writer, config)
    add_text(writer, source, config["vocab_size"], pre)
    names = gguf.get_tensor_name_map(MODEL_ARCHS[architecture], layers_of(config))
    tensors = with_stacked_streams(with_stacks(tensors_of(source)))
    if architecture == "deepseek2":
        tensors = with_halves(tensors, config)
    if architecture in MAMBA2:
        tensors = [mamba2_tensor(config, name, value) for name, value in tensors]
    if architecture in HYBRIDS:
        tensors = [hybrid_tensor(config, name, value) for name, value in tensors]
    for name, value in tensors:
        # A model without a head leaves out the first part of its names.
        whole = name if name.startswith(("model.", "lm_head.", "backbone.")) else f"model.{name}"
        whole += ".weight" if name.endswith(("layer_scalar", "correct_output_scale")) else ""
        whole = whole.replace("e_score_correction_bias", "e_score_correction.bias")
        whole = whole.replace("expert_bias", "expert_bias.bias")
        whole = re.sub(r"backbone(\.layers\.\d+)\.mixer\.experts", r"model\1.mlp.experts", whole)
        if ".feed_forward.experts." in whole:
            whole = whole.removeprefix("model.")
        written = names.get_name(whole, try_suffixes=(".weight", ".bias")) or of_router(whole)
        assert written is not None
        heads = next((config[count] for module, count in INTERLEAVED.items() if module in name), 0)
        turned = interleaved(value, heads) if architecture in TURNED and heads else value
        if name.endswith("conv.conv.weight"):
            turned = turned[:, 0]
        if architecture in MORE_NORMS and "norm" in name:
            turned = turned + np.float32(1)
        stored = F32 if value.ndim == 1 else kind if isinstance(kind, GGMLQuantizationType) else kind(written)
        writer.add_tensor(written, quantize(turned, stored), raw_dtype=stored)
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return output


EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


def with_stacks(tensors: list[tuple[str, Floats]]) -> list[tuple[str, Floats]]:
    """The matrices of experts as one tensor of all of them."""
    halved: list[tuple[str, Floats]] = []
    for name, value in tensors:
        if re.search(r"layers\.\d+\.experts\.", name):  # of Gemma 4, whose gate and up stay in one
            halved.append((f"{name}.weight", value))
            continue
        if "shared_mlp" in name:
            halved += of_shared(name, value, has_experts=any("block_sparse_moe" in other for other, _ in tensors))
            continue
        is_granite = name.endswith("block_sparse_moe.input_linear.weight")
        if not is_granite and not name.endswith("experts.gate_up_proj"):
            halved.append((f"{name}.weight" if name.endswith("experts.down_proj") else name, value))
            continue
        experts = name.replace("block_sparse_moe.input_linear.weight", "mlp.experts").removesuffix(".gate_up_proj")
        parts = zip(("gate", "up"), np.split(value, 2, axis=1), strict=True)
        halved += [(f"{experts}.{part}_proj.weight", np.ascontiguousarray(half)) for part, half in parts]
    found: dict[str, Floats] = {}
    stacks: dict[str, dict[int, Floats]] = {}
    for name, value in halved:
        if (expert := EXPERT.fullmatch(name)) is None:
            found[name] = value
            continue
        stacks.setdefault(f"{expert[1]}.{expert[3]}", {})[int(expert[2])] = value
    return [*found.items(), *((name, np.stack([by[n] for n in sorted(by)])) for name, by in stacks.items())]


def with_stacked_streams(tensors: list[tuple[str, Floats]]) -> list[tuple[str, Floats]]:
    """What makes streams of one, and one of streams, in two tensors, where there is such."""
    found = [(name, value) for name, value in tensors if "model.altup_" not in name]
    if len(found) == len(tensors):
        return tensors
    for kind in ("altup_projections", "altup_unembed_projections"):
        stack = [value for name, value in sorted(tensors) if name.startswith(f"model.{kind}.")]
        found.append((f"model.{kind}.weight", np.stack(stack)))
    return found


def of_router(name: str) -> str:
    """Gemma 4's two tensors that no table of names has."""
    layer, ending = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{ROUTER_SCALES[ending]}"


def of_shared(name: str, value: Floats, has_experts: bool) -> list[tuple[str, Floats]]:
    """What every token of Granite goes through, by the names of those who have its matrices apart."""
    mlp = name[: name.index("shared_mlp")] + ("mlp.shared_expert" if has_experts else "mlp")
    if name.endswith("output_linear.weight"):
        return [(f"{mlp}.down_proj.weight", value)]
    gate, up = map(np.ascontiguousarray, np.split(value, 2))
    return [(f"{mlp}.gate_proj.weight", gate), (f"{mlp}.up_proj.weight", up)]


def with_halves(tensors: list[tuple[str, Floats]], config: dict[str, Any]) -> list[tuple[str, Floats]]:
    """What makes keys and values of latents as two tensors of all heads, that of keys turned."""
    found = []
    for name, value in tensors:
        if "kv_b_proj" not in name:
            found.append((name.replace("correction_bias", "correction.bias"), value))
            continue
        apart = value.reshape(config["num_attention_heads"], -1, value.shape[1])
        keys, values = np.split(apart, [config["qk_nope_head_dim"]], axis=1)
        found += [(name.replace("kv_b", "k_b"), np.ascontiguousarray(keys.swapaxes(1, 2)))]
        found += [(name.replace("kv_b", "v_b"), np.ascontiguousarray(values))]
    return found


def interleaved(value: Floats, heads: int) -> Floats:
    """Rows of each head in the order that a rotation of neighbours needs: first of one half, first of the other."""
    halves = value.reshape(heads, 2, len(value) // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)


def add_facts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Geometry and rotation."""
    add_blocks(writer, config)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    if config["model_type"] != "gemma4_text":
        add_widths(writer, config)
    if config["model_type"] == "nemotron_h":
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", config.get("norm_eps")))
    add_layer_facts(writer, config)
    add_expert_facts(writer, config)
    rope = config.get("rope_parameters") or {}
    theta_of_windows = rope.get("sliding_attention", {}).get("rope_theta")
    rope = rope.get("full_attention") or rope
    theta = rope.get("rope_theta") or config.get("rope_theta", 10_000.0)
    if rope.get("rope_type") == "dynamic":  # Hunyuan's alpha
        theta *= rope["alpha"] ** (config["head_dim"] / (config["head_dim"] - 2))
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1)
        writer.add_rope_scaling_orig_ctx_len(256 * 1024)
    writer.add_rope_freq_base(theta)
    if config["model_type"] == "olmo3" and theta_of_windows != theta:
        writer.add_rope_freq_base_swa(theta_of_windows)
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if config["model_type"] == "ministral3":
            writer.add_rope_scaling_yarn_log_mul(rope.get("mscale_all_dim", 0.0))
            writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if rope.get("rope_type") == "longrope":
        original, stretch = rope["original_max_position_embeddings"], rope["factor"]
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], np.float32))
    if (share := rope.get("partial_rotary_factor")) and config["model_type"] != "gemma4_text":
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(int(width * share))
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, config))
    add_head_sizes(writer, config)


def add_blocks(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Layers, and behind them those that draft: of GLM transformers' class has none."""
    of_glm = config.get("num_nextn_predict_layers", 0) if config["model_type"].startswith("glm4_moe") else 0
    writer.add_block_count(layers_of(config) + config.get("mtp_num_hidden_layers", of_glm))
    if of_glm:
        writer.add_nextn_predict_layers(of_glm)


def layers_of(config: dict[str, Any]) -> int:
    """Of a model, or blocks of Nemotron-H."""
    return len(config["layers_block_type"]) if config["model_type"] == "nemotron_h" else config["num_hidden_layers"]


def add_head_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Of keys and values."""
    if config.get("kv_lora_rank"):
        add_latents(writer, config)
    elif config["model_type"] == "gemma4_text":
        add_two_heads(writer, config)
    elif config.get("head_dim"):
        if config["model_type"] == "gemma3n_text":
            add_streams(writer, config)
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])


def add_latents(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """DeepSeek's attention and experts."""
    turned, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + turned)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + turned)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(turned)
    writer.add_leading_dense_block_count(config.get("first_k_dense_replace", 1))
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if config["norm_topk_prob"]:
        writer.add_expert_weights_norm(True)
    if config["model_type"] == "deepseek_v2":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)
    if weight := config["rope_parameters"].get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * weight)


def add_two_heads(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Gemma 4's layers with and without a window."""
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    layers, shared, ffn = len(slides), config["num_kv_shared_layers"], config["intermediate_size"]
    whole = config["per_layer_config"][str(slides.index(False))]
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"] or 0)
    writer.add_sliding_window_pattern(slides)
    for side in ("key", "value"):
        getattr(writer, f"add_{side}_length")(whole["head_dim"])
        getattr(writer, f"add_{side}_length_swa")(config["head_dim"])
    wide = [ffn * (2 if config["use_double_wide_mlp"] and n >= layers - shared else 1) for n in range(layers)]
    writer.add_feed_forward_length(wide if config["use_double_wide_mlp"] else ffn)
    heads = [config["num_key_value_heads"], whole.get("num_key_value_heads", config["num_key_value_heads"])]
    writer.add_head_count_kv([heads[0] if is_sliding else heads[1] for is_sliding in slides])
    writer.add_rope_dimension_count(whole["head_dim"])
    writer.add_rope_dimension_count_swa(config["head_dim"])
    half = whole["head_dim"] // 2
    turned = int(half * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
    factors = np.where(np.arange(half) < turned, np.float32(1), np.float32(1e30))
    writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))


def add_streams(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Gemma 3n's, and its gates: -inf where nothing is cut."""
    writer.add_altup_active_idx(0)
    writer.add_altup_num_inputs(config["altup_num_inputs"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    shares = config["activation_sparsity_pattern"]
    writer.add_activation_sparsity_scale([NormalDist().inv_cdf(share) if share else -math.inf for share in shares])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def add_widths(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Of the feed-forward, and heads of keys, where layers are of one kind."""
    is_alone = config["model_type"] == "granitemoehybrid" and not config["num_local_experts"]
    width = "shared_intermediate_size" if is_alone else "intermediate_size"
    if config["model_type"] == "nemotron_h":
        add_block_widths(writer, config)
        return
    if config.get(width):
        writer.add_feed_forward_length(config[width])
    if config["model_type"] in ("lfm2", "lfm2_moe"):
        writer.add_head_count_kv([config["num_key_value_heads"] * (kind != "conv") for kind in config["layer_types"]])
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    elif "linear_attention" in config.get("layer_types", ()) and config["model_type"] == "granitemoehybrid":
        kinds = config["layer_types"]
        writer.add_head_count_kv([config["num_key_value_heads"] * (kind == "full_attention") for kind in kinds])
    else:
        writer.add_head_count_kv(1 if config.get("kv_lora_rank") else config["num_key_value_heads"])


def add_block_widths(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """0 for what a block of Nemotron-H has not."""
    kinds = config["layers_block_type"]
    kind, width = ("moe", "moe_intermediate_size") if "moe" in kinds else ("mlp", "intermediate_size")
    writer.add_feed_forward_length([config[width] * (each == kind) for each in kinds])
    writer.add_head_count_kv([config["num_key_value_heads"] * (each == "full_attention") for each in kinds])
    if "moe" in kinds:
        writer.add_expert_count(config["n_routed_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_group_count(config["n_group"])


def add_expert_facts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """How many, and of what size."""
    if count := config.get("num_experts", config.get("num_local_experts")):
        writer.add_expert_count(count)
        writer.add_expert_used_count(config.get("num_experts_per_tok") or config["top_k_experts"])
    if config["model_type"] in ("glm4_moe", "ernie4_5_moe"):
        add_shared_experts(writer, config)
    if config["model_type"] == "lfm2_moe":
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    is_dense = "moe" not in config.get("layers_block_type", ("moe",))
    if config.get("moe_intermediate_size") and not is_dense:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config["model_type"] in ("granitemoeshared", "granitemoehybrid"):
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    if config.get("shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def add_shared_experts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Of GLM-4.5 and ERNIE 4.5."""
    if config["model_type"] == "ernie4_5_moe":
        writer.add_expert_count(config["moe_num_experts"])
        writer.add_expert_used_count(config["moe_k"])
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
        return
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])


def add_layer_facts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Windows, caps and constants; which layers have the window is said for EXAONE alone."""
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        writer.add_sliding_window(config["sliding_window"])
        if config["model_type"] == "exaone4":
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["model_type"].startswith("granite"):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])


def llama3_factors(rope: dict[str, Any], config: dict[str, Any]) -> Floats:
    """What each frequency is divided by, wave by wave as Llama 3's model card says it."""
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    window, low, high = (rope[key] for key in LLAMA_3)
    factors = []
    for index in range(0, width, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (index / width)
        if wave < window / high:
            factors.append(1.0)
        elif wave > window / low:
            factors.append(rope["factor"])
        else:
            smooth = (window / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def add_text(writer: gguf.GGUFWriter, source: Path, vocab: int, pre: str) -> None:
    """A byte-level tokenizer.json with its template; what it has no token for is padded."""
    document = json.loads((source / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_str(json.dumps(document))
    settings = json.loads((source / "tokenizer_config.json").read_text())
    added = {entry["id"]: entry for entry in document["added_tokens"]}
    tokens, kinds = [], []
    for identifier in range(vocab):
        token = tokenizer.id_to_token(identifier)
        kind = TokenKind.NORMAL if token is not None else TokenKind.UNUSED
        if identifier in added:
            kind = TokenKind.CONTROL if added[identifier]["special"] else TokenKind.USER_DEFINED
        tokens.append(token if token is not None else f"[PAD{identifier}]")
        kinds.append(int(kind))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges or ["no merge"])
    for key, add in (("bos_token", writer.add_bos_token_id), ("eos_token", writer.add_eos_token_id)):
        if settings.get(key):
            identifier = tokenizer.token_to_id(settings[key])
            assert identifier is not None
            add(identifier)
    writer.add_add_bos_token(bool(settings.get("add_bos_token")))
    if settings.get("chat_template"):
        writer.add_chat_template(settings["chat_template"])


def tensors_of(source: Path) -> list[tuple[str, Floats]]:
    """Every tensor of a checkpoint as float32."""
    with SafetensorsCheckpoint(source) as checkpoint:
        return [(name, checkpoint.tensor(name, checkpoint.shape(name))) for name in checkpoint.unused()]
