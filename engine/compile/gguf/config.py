"""The facts of the network, from metadata to what a checkpoint's config.json would say."""

from collections.abc import Mapping

import numpy as np

from engine.compile.checkpoint import Checkpoint
from engine.compile.gguf.architectures import ROPE_FACTORS, GgufArchitecture
from engine.compile.gguf.fields import ArchitectureFields
from engine.compile.gguf.geometry import GgufGeometry
from engine.compile.gguf.header import GgufHeader
from engine.compile.task import BARE
from engine.errors import CompileError, UnsupportedModel
from engine.models.qwen3_5 import ATTENTION_LAYER, RECURRENT_LAYER
from engine.models.rotary import DEFAULT_THETA, MAX_POSITIONS

# What changes the network's arithmetic and is in no model that the table names; 0 and absent are the same.
FOREIGN = ("expert_count", "attention.scale", "logit_scale", "embedding_scale", "residual_scale")
NO_POOLING, LAST_TOKEN = 0, 3  # of `pooling_type`; files of chat models have none


def network_config(
    header: GgufHeader, architecture: GgufArchitecture, geometry: GgufGeometry, tensors: Checkpoint
) -> dict[str, object]:
    """As `read_network` takes it. CompileError for metadata that is missing or no number, UnsupportedModel by name."""
    fields = ArchitectureFields(header, architecture.name)
    for key in FOREIGN:
        if fields.number(key, -1e30, 1e30, 0.0):
            raise UnsupportedModel(f"{header.path.name}: {architecture.name}.{key} is not supported")
    window = fields.integer("attention.sliding_window", 0, 1 << 40, 0)
    turned = fields.integer("rope.dimension_count", 2, 1024, geometry.head_dim)
    family = "MistralForCausalLM" if window and architecture.name == "llama" else architecture.family
    return {
        "architectures": [f"{family.removesuffix('ForCausalLM')}{BARE}" if _is_embedder(header, fields) else family],
        "hidden_size": fields.integer("embedding_length", 1, 1 << 16),
        "num_hidden_layers": geometry.layers,
        "num_attention_heads": geometry.heads,
        "num_key_value_heads": fields.integer("attention.head_count_kv", 1, geometry.heads, geometry.heads),
        "head_dim": geometry.head_dim,
        "intermediate_size": fields.integer("feed_forward_length", 1, 1 << 20),
        "vocab_size": tensors.shape("model.embed_tokens.weight")[0],
        "max_position_embeddings": fields.integer("context_length", 1, MAX_POSITIONS),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon", 1e-12, 1.0),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "attention_bias": f"model.layers.{geometry.layers - 1}.self_attn.q_proj.bias" in tensors,
        "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in tensors,
        "use_sliding_window": bool(window),
        "sliding_window": window or None,
        "partial_rotary_factor": turned / geometry.head_dim,
        "rope_parameters": _rope(header, fields, tensors, turned),
        **_recurrent(geometry),
    }


def _is_embedder(header: GgufHeader, fields: ArchitectureFields) -> bool:
    """Whether the file says that its vectors are those of last tokens. UnsupportedModel for another way."""
    pooling = fields.integer("pooling_type", NO_POOLING, 1 << 31, NO_POOLING)
    if pooling not in (NO_POOLING, LAST_TOKEN):
        key = f"{header.path.name}: {fields.key('pooling_type')}"
        raise UnsupportedModel(f"{key} {pooling} is not supported (supported: 3, the last token)")
    return pooling == LAST_TOKEN


def _recurrent(geometry: GgufGeometry) -> dict[str, object]:
    """Layers with a state, for the family that has them; their last layer has attention, as everywhere else."""
    spec = geometry.recurrent
    if spec is None:
        return {}
    return {
        "layer_types": [
            RECURRENT_LAYER if layer in spec.layers else ATTENTION_LAYER for layer in range(geometry.layers)
        ],
        "linear_num_key_heads": spec.key_heads,
        "linear_num_value_heads": spec.value_heads,
        "linear_key_head_dim": spec.key_dim,
        "linear_value_head_dim": spec.value_dim,
        "linear_conv_kernel_dim": spec.kernel,
    }


def _rope(header: GgufHeader, fields: ArchitectureFields, tensors: Checkpoint, turned: int) -> Mapping[str, object]:
    """Scaling by a factor, or by the list of factors that converters write for Llama 3's rule."""
    theta = {"rope_theta": fields.number("rope.freq_base", 1.0, 1e12, DEFAULT_THETA)}
    if ROPE_FACTORS in tensors:
        factors = tensors.tensor(ROPE_FACTORS, (turned // 2,))
        if not np.all(factors > 0):
            raise CompileError(f"{header.path.name}: {ROPE_FACTORS} holds numbers that are not positive")
        return {"rope_type": "factors", "factors": factors.tolist()} | theta
    factor = fields.number("rope.scaling.factor", 0.0, 1e6, fields.number("rope.scale_linear", 0.0, 1e6, 0.0))
    kind = fields.text("rope.scaling.type", "linear" if factor else "none")
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return theta
    return {"rope_type": kind, "factor": factor} | theta
