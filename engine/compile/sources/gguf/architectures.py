"""The table of GGUF architectures, their metadata with every value checked, and the sizes that tensors follow from.

Names on the left are those of checkpoints, which the rest of the compiler speaks; `{layer}` is the layer's index.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from engine.compile.sources.gguf.header import GgufHeader
from engine.errors import UnsupportedModel
from engine.files import brief
from engine.models.granite_hybrid import SPLIT_MLP

ARCHITECTURE = "general.architecture"
# Facts of the network that are stored as tensors.
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}
DRAFTING = "mtp."  # how checkpoints begin the names of what drafts tokens

LAYER = "model.layers.{layer}"
QUERY, KEY, VALUE = (f"{LAYER}.self_attn.{name}_proj" for name in ("q", "k", "v"))
UP, DOWN = f"{LAYER}.mlp.up_proj", f"{LAYER}.mlp.down_proj"
DENSE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    f"{LAYER}.input_layernorm": "blk.{layer}.attn_norm",
    QUERY: "blk.{layer}.attn_q",
    KEY: "blk.{layer}.attn_k",
    VALUE: "blk.{layer}.attn_v",
    f"{LAYER}.self_attn.o_proj": "blk.{layer}.attn_output",
    f"{LAYER}.self_attn.q_norm": "blk.{layer}.attn_q_norm",
    f"{LAYER}.self_attn.k_norm": "blk.{layer}.attn_k_norm",
    f"{LAYER}.post_attention_layernorm": "blk.{layer}.ffn_norm",
    f"{LAYER}.mlp.gate_proj": "blk.{layer}.ffn_gate",
    UP: "blk.{layer}.ffn_up",
    DOWN: "blk.{layer}.ffn_down",
}

GATE, POST_ATTENTION = f"{LAYER}.mlp.gate_proj", f"{LAYER}.post_attention_layernorm"
BEHIND = {
    POST_ATTENTION: "blk.{layer}.post_attention_norm",
    f"{LAYER}.post_feedforward_layernorm": "blk.{layer}.post_ffw_norm",
}
GEMMA = DENSE | BEHIND | {f"{LAYER}.pre_feedforward_layernorm": "blk.{layer}.ffn_norm"}
GEMMA4 = GEMMA | {
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    f"{LAYER}.per_layer_input_gate": "blk.{layer}.inp_gate",
    f"{LAYER}.per_layer_projection": "blk.{layer}.proj",
    f"{LAYER}.post_per_layer_input_norm": "blk.{layer}.post_norm",
}
GEMMA4_EXPERTS = {
    f"{LAYER}.router.proj": "blk.{layer}.ffn_gate_inp",
    f"{LAYER}.pre_feedforward_layernorm_2": "blk.{layer}.pre_ffw_norm_2",
    f"{LAYER}.post_feedforward_layernorm_1": "blk.{layer}.post_ffw_norm_1",
    f"{LAYER}.post_feedforward_layernorm_2": "blk.{layer}.post_ffw_norm_2",
}
GEMMA4_TENSORS = {
    f"{LAYER}.layer_scalar": "blk.{layer}.layer_output_scale.weight",
    f"{LAYER}.router.scale": "blk.{layer}.ffn_gate_inp.scale",
    f"{LAYER}.router.per_expert_scale": "blk.{layer}.ffn_down_exps.scale",
    f"{LAYER}.experts.gate_up_proj": "blk.{layer}.ffn_gate_up_exps.weight",
    f"{LAYER}.experts.down_proj": "blk.{layer}.ffn_down_exps.weight",
}
STACKED = {f"{LAYER}.mlp.gate_up_proj": "blk.{layer}.ffn_up"}
PHI3 = {name: stored for name, stored in DENSE.items() if name not in (QUERY, KEY, VALUE, GATE, UP)}
PHI3 |= STACKED | {f"{LAYER}.self_attn.qkv_proj": "blk.{layer}.attn_qkv"}
GLM4 = {name: stored for name, stored in DENSE.items() if name not in (GATE, UP)}
GLM4 |= STACKED | {
    f"{LAYER}.post_self_attn_layernorm": "blk.{layer}.post_attention_norm",
    f"{LAYER}.post_mlp_layernorm": "blk.{layer}.post_ffw_norm",
}
HUNYUAN = DENSE | {
    f"{LAYER}.self_attn.query_layernorm": "blk.{layer}.attn_q_norm",
    f"{LAYER}.self_attn.key_layernorm": "blk.{layer}.attn_k_norm",
}


def _with_experts(mlp: str) -> dict[str, str]:
    """The router, and the matrices of all experts in one tensor each."""
    stacked = {f"{mlp}.experts.{name}_proj": f"blk.{{layer}}.ffn_{name}_exps" for name in ("gate", "up", "down")}
    return DENSE | stacked | {f"{mlp}.gate": "blk.{layer}.ffn_gate_inp"}


EXPERTS, MIXTRAL = _with_experts(f"{LAYER}.mlp"), _with_experts(f"{LAYER}.block_sparse_moe")
GRANITE_MOE = {name: stored for name, stored in MIXTRAL.items() if not name.endswith("block_sparse_moe.gate")}
GRANITE_MOE |= {f"{LAYER}.block_sparse_moe.router.layer": "blk.{layer}.ffn_gate_inp"}
GRANITE_MOE |= {f"{LAYER}.shared_mlp.{name}_proj": f"blk.{{layer}}.ffn_{name}_shexp" for name in ("gate", "up", "down")}
SHARED = {
    f"{LAYER}.mlp.shared_expert.{name}_proj": f"blk.{{layer}}.ffn_{name}_shexp" for name in ("gate", "up", "down")
}
QWEN2_MOE = EXPERTS | SHARED | {f"{LAYER}.mlp.shared_expert_gate": "blk.{layer}.ffn_gate_inp_shexp"}
GPT_OSS = {name: stored for name, stored in EXPERTS.items() if name != f"{LAYER}.mlp.gate"}
GPT_OSS |= {f"{LAYER}.mlp.router": "blk.{layer}.ffn_gate_inp", POST_ATTENTION: "blk.{layer}.post_attention_norm"}
GPT_OSS_TENSORS = {f"{LAYER}.self_attn.sinks": "blk.{layer}.attn_sinks.weight"}
SHARED_EXPERTS = {
    f"{LAYER}.mlp.shared_experts.{name}_proj": f"blk.{{layer}}.ffn_{name}_shexp" for name in ("gate", "up", "down")
}
KV_UP, KEY_UP, VALUE_UP = (f"{LAYER}.self_attn.{name}_proj" for name in ("kv_b", "k_b", "v_b"))
LATENT = EXPERTS | SHARED_EXPERTS
LATENT |= {
    f"{LAYER}.self_attn.q_a_proj": "blk.{layer}.attn_q_a",
    f"{LAYER}.self_attn.q_a_layernorm": "blk.{layer}.attn_q_a_norm",
    f"{LAYER}.self_attn.q_b_proj": "blk.{layer}.attn_q_b",
    f"{LAYER}.self_attn.kv_a_proj_with_mqa": "blk.{layer}.attn_kv_a_mqa",
    f"{LAYER}.self_attn.kv_a_layernorm": "blk.{layer}.attn_kv_a_norm",
    KV_UP: "blk.{layer}.attn_kv_b",
    KEY_UP: "blk.{layer}.attn_k_b",
    VALUE_UP: "blk.{layer}.attn_v_b",
}
CHOICE_BIAS = {f"{LAYER}.mlp.gate.e_score_correction_bias": "blk.{layer}.exp_probs_b.bias"}
GLM4_MOE = EXPERTS | SHARED_EXPERTS | {POST_ATTENTION: "blk.{layer}.post_attention_norm"}
ERNIE_MOE = EXPERTS | SHARED_EXPERTS
ERNIE_BIAS = {f"{LAYER}.mlp.moe_statics.e_score_correction_bias": "blk.{layer}.exp_probs_b.bias"}
SHORT_CONVOLUTION = f"{LAYER}.conv.conv"
LFM2 = {name: DENSE[name] for name in ("model.embed_tokens", "lm_head", QUERY, KEY, VALUE)} | {
    "model.embedding_norm": "token_embd_norm",
    f"{LAYER}.operator_norm": "blk.{layer}.attn_norm",
    f"{LAYER}.self_attn.out_proj": "blk.{layer}.attn_output",
    f"{LAYER}.self_attn.q_layernorm": "blk.{layer}.attn_q_norm",
    f"{LAYER}.self_attn.k_layernorm": "blk.{layer}.attn_k_norm",
    SHORT_CONVOLUTION: "blk.{layer}.shortconv.conv",
    f"{LAYER}.conv.in_proj": "blk.{layer}.shortconv.in_proj",
    f"{LAYER}.conv.out_proj": "blk.{layer}.shortconv.out_proj",
    f"{LAYER}.ffn_norm": "blk.{layer}.ffn_norm",
    f"{LAYER}.feed_forward.w1": "blk.{layer}.ffn_gate",
    f"{LAYER}.feed_forward.w3": "blk.{layer}.ffn_up",
    f"{LAYER}.feed_forward.w2": "blk.{layer}.ffn_down",
}
FEED_FORWARD = f"{LAYER}.feed_forward"
LFM2_MOE = LFM2 | {
    f"{FEED_FORWARD}.gate": "blk.{layer}.ffn_gate_inp",
    **{f"{FEED_FORWARD}.experts.{name}_proj": f"blk.{{layer}}.ffn_{name}_exps" for name in ("gate", "up", "down")},
}
LFM2_BIAS = {f"{FEED_FORWARD}.expert_bias": "blk.{layer}.exp_probs_b.bias"}
MAMBA2 = f"{LAYER}.mamba"
GRANITE_HYBRID = GRANITE_MOE | {
    f"{MAMBA2}.in_proj": "blk.{layer}.ssm_in",
    f"{MAMBA2}.conv1d": "blk.{layer}.ssm_conv1d",
    f"{MAMBA2}.norm": "blk.{layer}.ssm_norm",
    f"{MAMBA2}.out_proj": "blk.{layer}.ssm_out",
}
GRANITE_HYBRID_TENSORS = {
    f"{MAMBA2}.A_log": "blk.{layer}.ssm_a",
    f"{MAMBA2}.D": "blk.{layer}.ssm_d",
    f"{MAMBA2}.dt_bias": "blk.{layer}.ssm_dt.bias",
}
MODERN_BERT = {
    "model.embeddings.tok_embeddings": "token_embd",
    "model.embeddings.norm": "token_embd_norm",
    "model.final_norm": "output_norm",
    f"{LAYER}.attn_norm": "blk.{layer}.attn_norm",
    f"{LAYER}.attn.Wqkv": "blk.{layer}.attn_qkv",
    f"{LAYER}.attn.Wo": "blk.{layer}.attn_output",
    f"{LAYER}.mlp_norm": "blk.{layer}.ffn_norm",
    f"{LAYER}.mlp.Wi": "blk.{layer}.ffn_up",
    f"{LAYER}.mlp.Wo": "blk.{layer}.ffn_down",
}
BERT_LAYER, TOKEN_TYPES = "encoder.layer.{layer}", "embeddings.token_type_embeddings"
BERT = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.position_embeddings": "position_embd",
    TOKEN_TYPES: "token_types",
    **{f"{BERT_LAYER}.attention.self.{name}": f"blk.{{layer}}.attn_{name[0]}" for name in ("query", "key", "value")},
    f"{BERT_LAYER}.attention.output.dense": "blk.{layer}.attn_output",
    f"{BERT_LAYER}.attention.output.LayerNorm": "blk.{layer}.attn_output_norm",
    f"{BERT_LAYER}.intermediate.dense": "blk.{layer}.ffn_up",
    f"{BERT_LAYER}.output.dense": "blk.{layer}.ffn_down",
    f"{BERT_LAYER}.output.LayerNorm": "blk.{layer}.layer_output_norm",
}
DELTA = f"{LAYER}.linear_attn"
A_LOG, DT_BIAS = "A_log", "dt_bias"
MIXED, OUTPUT_GATE, CONVOLUTION = f"{DELTA}.in_proj_qkv", f"{DELTA}.in_proj_z", f"{DELTA}.conv1d"
STEPS = BETA, DECAY = f"{DELTA}.in_proj_b", f"{DELTA}.in_proj_a"
RECURRENT_OUTPUT = f"{DELTA}.out_proj"
FFN_NORM = f"{LAYER}.post_attention_layernorm"
HYBRID = DENSE | {
    FFN_NORM: "blk.{layer}.post_attention_norm",
    MIXED: "blk.{layer}.attn_qkv",
    OUTPUT_GATE: "blk.{layer}.attn_gate",
    BETA: "blk.{layer}.ssm_beta",
    DECAY: "blk.{layer}.ssm_alpha",
    CONVOLUTION: "blk.{layer}.ssm_conv1d",
    f"{DELTA}.norm": "blk.{layer}.ssm_norm",
    RECURRENT_OUTPUT: "blk.{layer}.ssm_out",
}
HYBRID_MOE = {name: stored for name, stored in (HYBRID | QWEN2_MOE).items() if name not in (GATE, UP, DOWN)} | {
    FFN_NORM: HYBRID[FFN_NORM]
}
HYBRID_TENSORS = {f"{DELTA}.{A_LOG}": "blk.{layer}.ssm_a", f"{DELTA}.{DT_BIAS}": "blk.{layer}.ssm_dt.bias"}
# Those that multiply with 1 + w; the norm of recurrent outputs multiplies with w itself.
NORMS = (
    *("model.norm", f"{LAYER}.input_layernorm", FFN_NORM),
    *(f"{LAYER}.self_attn.q_norm", f"{LAYER}.self_attn.k_norm"),
    *(f"{LAYER}.pre_feedforward_layernorm", f"{LAYER}.post_feedforward_layernorm"),
)


class Gating(IntEnum):
    """What becomes of the router's outputs, by the number that files give it; 0 is the usual one."""

    UNTOLD = 0
    SOFTMAX = 1
    SIGMOID = 2


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """One value of `general.architecture`.

    family: the name transformers gives its class. modules: names by those of checkpoints, without `.weight` and
    `.bias`. tensors: the same of whole names. is_interleaved: the converter re-orders queries and keys, as its rotation
    turns neighbours. is_hybrid: layers are recurrent, or have attention. has_more_norms: the converter adds 1 to the
    weights of norms. keys: what changes the arithmetic and is read for this architecture, by its name in config.json.
    facts: what files do not say, as config.json would. has_latents: keys and values are made of latents. is_encoder:
    rows see both ways, and vectors are what it is for. gating: of experts.
    """

    name: str
    family: str
    modules: Mapping[str, str]
    tensors: Mapping[str, str] = field(default_factory=dict)
    is_interleaved: bool = False
    is_hybrid: bool = False
    has_more_norms: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    has_latents: bool = False
    is_encoder: bool = False
    gating: Gating = Gating.SOFTMAX

    @property
    def embedding(self) -> str:
        """The module of the table of tokens."""
        return next(ours for ours, theirs in self.modules.items() if theirs == "token_embd")


CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
MULTIPLIERS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
EXPERT_COUNT = "expert_count"
COUNTS = {"num_experts": EXPERT_COUNT, "num_experts_per_tok": "expert_used_count"}
SIZES = COUNTS | {"moe_intermediate_size": "expert_feed_forward_length"}
GEMMA4_SIZES = {
    "num_experts": EXPERT_COUNT,
    "top_k_experts": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
LOCAL_COUNTS = {"num_local_experts": EXPERT_COUNT, "num_experts_per_tok": "expert_used_count"}
GRANITE_SIZES = LOCAL_COUNTS | {"shared_intermediate_size": "expert_shared_feed_forward_length"}
MAMBA2_SIZES = {
    "mamba_n_heads": "ssm.time_step_rank",
    "mamba_n_groups": "ssm.group_count",
    "mamba_d_state": "ssm.state_size",
    "mamba_d_ssm": "ssm.inner_size",
    "mamba_d_conv": "ssm.conv_kernel",
}
LOCAL_SIZES = LOCAL_COUNTS | {"intermediate_size": "expert_feed_forward_length"}
LATENT_SIZES = SIZES | {
    "n_routed_experts": EXPERT_COUNT,
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "routed_scaling_factor": "expert_weights_scale",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
}
ERNIE_SIZES = {
    "moe_num_experts": EXPERT_COUNT,
    "moe_k": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "moe_num_shared_experts": "expert_shared_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
}
SHARED_SIZES = SIZES | {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"}
SIZE_AS_TOLD = {"block_auto_adjust_ff_dim": False}
BOTH_WAYS = {"use_bidirectional_attention": True}
ARCHITECTURES = {
    each.name: each
    for each in (
        GgufArchitecture("llama", "LlamaForCausalLM", MIXTRAL, is_interleaved=True, keys=COUNTS),
        GgufArchitecture("qwen2", "Qwen2ForCausalLM", DENSE),
        GgufArchitecture("qwen3", "Qwen3ForCausalLM", DENSE),
        # The text models of Qwen2.5-VL and Qwen3-VL: of text all positions are alike.
        GgufArchitecture("qwen2vl", "Qwen2ForCausalLM", DENSE),
        GgufArchitecture("qwen3vl", "Qwen3ForCausalLM", DENSE),
        GgufArchitecture("qwen2moe", "Qwen2MoeForCausalLM", QWEN2_MOE, keys=SHARED_SIZES),
        GgufArchitecture("qwen3moe", "Qwen3MoeForCausalLM", EXPERTS, keys=SIZES, facts={"norm_topk_prob": True}),
        GgufArchitecture("olmoe", "OlmoeForCausalLM", EXPERTS, keys=COUNTS),
        GgufArchitecture(
            "deepseek2", "DeepseekV2ForCausalLM", LATENT, CHOICE_BIAS, keys=LATENT_SIZES, has_latents=True
        ),
        GgufArchitecture(
            "glm4moe", "Glm4MoeForCausalLM", GLM4_MOE, CHOICE_BIAS, keys=LATENT_SIZES, gating=Gating.SIGMOID
        ),
        GgufArchitecture("ernie4_5-moe", "Ernie4_5_MoeForCausalLM", ERNIE_MOE, ERNIE_BIAS, keys=ERNIE_SIZES),
        GgufArchitecture("qwen35", "Qwen3_5ForCausalLM", HYBRID, HYBRID_TENSORS, is_hybrid=True, has_more_norms=True),
        GgufArchitecture("gpt-oss", "GptOssForCausalLM", GPT_OSS, GPT_OSS_TENSORS, keys=LOCAL_SIZES),
        GgufArchitecture(
            "qwen35moe",
            "Qwen3_5MoeForCausalLM",
            HYBRID_MOE,
            HYBRID_TENSORS,
            is_hybrid=True,
            has_more_norms=True,
            keys=SHARED_SIZES,
        ),
        GgufArchitecture(
            "mistral3",
            "Ministral3ForCausalLM",
            DENSE,
            is_interleaved=True,
            keys={"llama_4_scaling_beta": "attention.temperature_scale"},
        ),
        GgufArchitecture("phi3", "Phi3ForCausalLM", PHI3),
        GgufArchitecture("smollm3", "SmolLM3ForCausalLM", DENSE, is_interleaved=True),
        GgufArchitecture("granite", "GraniteForCausalLM", DENSE, is_interleaved=True, keys=MULTIPLIERS),
        GgufArchitecture(
            "granitemoe", "GraniteMoeForCausalLM", GRANITE_MOE, is_interleaved=True, keys=MULTIPLIERS | GRANITE_SIZES
        ),
        GgufArchitecture(
            "granitehybrid",
            "GraniteMoeHybridForCausalLM",
            GRANITE_HYBRID,
            GRANITE_HYBRID_TENSORS,
            is_interleaved=True,
            keys=MULTIPLIERS | GRANITE_SIZES | MAMBA2_SIZES,
            facts={SPLIT_MLP: True},
        ),
        GgufArchitecture("hunyuan-dense", "HunYuanDenseV1ForCausalLM", HUNYUAN),
        GgufArchitecture("ernie4_5", "Ernie4_5ForCausalLM", DENSE),
        GgufArchitecture("olmo2", "Olmo2ForCausalLM", DENSE | BEHIND),
        GgufArchitecture("exaone4", "Exaone4ForCausalLM", DENSE | BEHIND),
        GgufArchitecture("glm4", "Glm4ForCausalLM", GLM4),
        GgufArchitecture("gemma", "GemmaForCausalLM", DENSE, has_more_norms=True),
        GgufArchitecture("gemma2", "Gemma2ForCausalLM", GEMMA, has_more_norms=True, keys=CAPS),
        GgufArchitecture("gemma3", "Gemma3ForCausalLM", GEMMA, has_more_norms=True, keys=CAPS),
        GgufArchitecture(
            "gemma4", "Gemma4ForCausalLM", GEMMA4 | GEMMA4_EXPERTS, GEMMA4_TENSORS, keys=CAPS | GEMMA4_SIZES
        ),
        GgufArchitecture(
            "gemma-embedding", "Gemma3TextModel", GEMMA, has_more_norms=True, facts=BOTH_WAYS, is_encoder=True
        ),
        GgufArchitecture(
            "lfm2", "Lfm2ForCausalLM", LFM2, keys={"conv_L_cache": "shortconv.l_cache"}, facts=SIZE_AS_TOLD
        ),
        GgufArchitecture(
            "lfm2moe",
            "Lfm2MoeForCausalLM",
            LFM2_MOE,
            LFM2_BIAS,
            keys=SIZES | {"conv_L_cache": "shortconv.l_cache", "num_dense_layers": "leading_dense_block_count"},
            gating=Gating.SIGMOID,
        ),
        GgufArchitecture("modern-bert", "ModernBertModel", MODERN_BERT, is_encoder=True),
        GgufArchitecture("bert", "BertModel", BERT, is_encoder=True),
    )
}


def architecture_of(header: GgufHeader) -> GgufArchitecture:
    """The architecture of a file. UnsupportedModel by its name when there is no such row."""
    name = header.metadata.get(ARCHITECTURE)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModel(f"{header.path.name}: architecture {brief(name)} is not supported (supported: {known})")
    return ARCHITECTURES[name]
