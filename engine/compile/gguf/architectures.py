"""The table of GGUF architectures: the class that reads each, and how its tensors are named and turned.

Names on the left are those of checkpoints, which the rest of the compiler speaks; `{layer}` is the layer's index.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.compile.gguf.header import GgufHeader
from engine.errors import UnsupportedModel
from engine.files.content import brief

ARCHITECTURE = "general.architecture"
PARTS = "split.count"
ROPE_FACTORS = "rope_freqs.weight"  # a fact of the network that is stored as a tensor
DRAFTING = "mtp."  # how checkpoints begin the names of what drafts tokens

LAYER = "model.layers.{layer}"
QUERY, KEY = f"{LAYER}.self_attn.q_proj", f"{LAYER}.self_attn.k_proj"
DENSE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    f"{LAYER}.input_layernorm": "blk.{layer}.attn_norm",
    QUERY: "blk.{layer}.attn_q",
    KEY: "blk.{layer}.attn_k",
    f"{LAYER}.self_attn.v_proj": "blk.{layer}.attn_v",
    f"{LAYER}.self_attn.o_proj": "blk.{layer}.attn_output",
    f"{LAYER}.self_attn.q_norm": "blk.{layer}.attn_q_norm",
    f"{LAYER}.self_attn.k_norm": "blk.{layer}.attn_k_norm",
    f"{LAYER}.post_attention_layernorm": "blk.{layer}.ffn_norm",
    f"{LAYER}.mlp.gate_proj": "blk.{layer}.ffn_gate",
    f"{LAYER}.mlp.up_proj": "blk.{layer}.ffn_up",
    f"{LAYER}.mlp.down_proj": "blk.{layer}.ffn_down",
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
HYBRID_TENSORS = {f"{DELTA}.{A_LOG}": "blk.{layer}.ssm_a", f"{DELTA}.{DT_BIAS}": "blk.{layer}.ssm_dt.bias"}
# Those that multiply with 1 + w; the norm of recurrent outputs multiplies with w itself.
NORMS = (
    *("model.norm", f"{LAYER}.input_layernorm", FFN_NORM),
    *(f"{LAYER}.self_attn.q_norm", f"{LAYER}.self_attn.k_norm"),
)


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """One value of `general.architecture`.

    family: the name transformers gives its class. modules: names by those of checkpoints, without `.weight` and
    `.bias`. tensors: the same of whole names. is_interleaved: the converter re-orders queries and keys, as its rotation
    turns neighbours. is_hybrid: layers are recurrent, or have attention.
    """

    name: str
    family: str
    modules: Mapping[str, str]
    tensors: Mapping[str, str] = field(default_factory=dict)
    is_interleaved: bool = False
    is_hybrid: bool = False


ARCHITECTURES = {
    each.name: each
    for each in (
        GgufArchitecture("llama", "LlamaForCausalLM", DENSE, is_interleaved=True),
        GgufArchitecture("qwen2", "Qwen2ForCausalLM", DENSE),
        GgufArchitecture("qwen3", "Qwen3ForCausalLM", DENSE),
        GgufArchitecture("qwen35", "Qwen3_5ForCausalLM", HYBRID, HYBRID_TENSORS, is_hybrid=True),
    )
}


def architecture_of(header: GgufHeader) -> GgufArchitecture:
    """The architecture of a file. UnsupportedModel by its name when there is no such row, and for parts of a model."""
    parts = header.metadata.get(PARTS, 1)
    if isinstance(parts, int) and parts > 1:
        raise UnsupportedModel(f"{header.path.name} is one of {brief(parts)} files of a model; join them first")
    name = header.metadata.get(ARCHITECTURE)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModel(f"{header.path.name}: architecture {brief(name)} is not supported (supported: {known})")
    return ARCHITECTURES[name]
