"""The facts of the network, from metadata to what a checkpoint's config.json would say."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.compile.checkpoint import Checkpoint
from engine.compile.gguf.architectures import ROPE_FACTORS, GgufArchitecture
from engine.compile.gguf.header import GgufHeader
from engine.errors import CompileError, UnsupportedModel
from engine.models.config_fields import ConfigFields
from engine.models.rotary import DEFAULT_THETA, MAX_POSITIONS

# What changes the network's arithmetic and is in no model that the table names; 0 and absent are the same.
FOREIGN = ("expert_count", "attention.scale", "logit_scale", "embedding_scale", "residual_scale", "pooling_type")


@dataclass(frozen=True, slots=True)
class GgufGeometry:
    """What tensors cannot be read without. head_dim: rows of one head in the matrices of queries and keys."""

    layers: int
    heads: int
    head_dim: int


def read_geometry(header: GgufHeader, architecture: GgufArchitecture) -> GgufGeometry:
    """From metadata alone. CompileError when it is missing or out of bounds, UnsupportedModel by name."""
    fields = _ArchitectureFields(header, architecture.name)
    hidden, heads = fields.integer("embedding_length", 1, 1 << 16), fields.integer("attention.head_count", 1, 1024)
    head_dim = fields.integer("attention.key_length", 2, 1024, max(hidden // heads, 2))
    if fields.integer("attention.value_length", 2, 1024, head_dim) != head_dim:
        raise UnsupportedModel(f"{header.path.name}: keys and values of different lengths are not supported")
    if head_dim % 2:
        raise CompileError(f"{header.path.name}: heads of {head_dim} numbers cannot be turned in pairs")
    return GgufGeometry(fields.integer("block_count", 1, 1024), heads, head_dim)


def network_config(
    header: GgufHeader, architecture: GgufArchitecture, geometry: GgufGeometry, tensors: Checkpoint
) -> dict[str, object]:
    """As `read_network` takes it. CompileError for metadata that is missing or no number, UnsupportedModel by name."""
    fields = _ArchitectureFields(header, architecture.name)
    for key in FOREIGN:
        if fields.number(key, -1e30, 1e30, 0.0):
            raise UnsupportedModel(f"{header.path.name}: {architecture.name}.{key} is not supported")
    window = fields.integer("attention.sliding_window", 0, 1 << 40, 0)
    turned = fields.integer("rope.dimension_count", 2, 1024, geometry.head_dim)
    return {
        "architectures": ["MistralForCausalLM" if window and architecture.name == "llama" else architecture.family],
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
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in tensors,
        "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in tensors,
        "use_sliding_window": bool(window),
        "sliding_window": window or None,
        "partial_rotary_factor": turned / geometry.head_dim,
        "rope_parameters": _rope(header, fields, tensors, turned),
    }


class _ArchitectureFields:
    """Metadata below the architecture's name."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self._prefix = f"{architecture}."
        facts = {key: value for key, value in header.metadata.items() if key.startswith(self._prefix)}
        # Where a number is wanted an array is refused, in a sentence that needs no more than its beginning.
        short = {key: value[:9].tolist() if isinstance(value, np.ndarray) else value for key, value in facts.items()}
        self._fields = ConfigFields(short, header.path.name)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        return self._fields.integer(self._prefix + key, low, high, default)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        return self._fields.number(self._prefix + key, low, high, default)

    def text(self, key: str, default: str) -> str:
        return self._fields.text(self._prefix + key, default)


def _rope(header: GgufHeader, fields: _ArchitectureFields, tensors: Checkpoint, turned: int) -> Mapping[str, object]:
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
