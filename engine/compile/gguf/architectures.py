"""The table of GGUF architectures: the class that reads each, and how its tensors are named and turned.

Names on the left are those of checkpoints, which the rest of the compiler speaks; `{layer}` is the layer's index.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.compile.gguf.header import GgufHeader
from engine.errors import UnsupportedModel
from engine.files.content import brief

ARCHITECTURE = "general.architecture"
PARTS = "split.count"
ROPE_FACTORS = "rope_freqs.weight"  # a fact of the network that is stored as a tensor

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


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """One value of `general.architecture`.

    family: the name transformers gives its class. modules: names by those of checkpoints, without `.weight` and
    `.bias`. interleaved: modules whose outputs the converter re-orders, as its rotation turns neighbours.
    """

    name: str
    family: str
    modules: Mapping[str, str]
    interleaved: tuple[str, ...] = ()


ARCHITECTURES = {
    each.name: each
    for each in (
        GgufArchitecture("llama", "LlamaForCausalLM", DENSE, (QUERY, KEY)),
        GgufArchitecture("qwen2", "Qwen2ForCausalLM", DENSE),
        GgufArchitecture("qwen3", "Qwen3ForCausalLM", DENSE),
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
