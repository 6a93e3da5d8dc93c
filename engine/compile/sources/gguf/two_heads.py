"""What config.json of Gemma 3n would say, and, where layers with a window have heads of their own, that of Gemma 4."""

import math
from statistics import NormalDist

from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.gguf.fields import ArchitectureFields
from engine.compile.sources.gguf.geometry import GgufGeometry
from engine.errors import UnsupportedModel

TABLE, PATH = "model.embed_tokens_per_layer.weight", "model.layers.0.laurel.linear_left.weight"
PATTERN, SHARED = "attention.sliding_window_pattern", "attention.shared_kv_layers"
STREAMS, CUTOFFS = "altup.num_inputs", "activation_sparsity_scale"


def two_heads(fields: ArchitectureFields, geometry: GgufGeometry, tensors: Checkpoint) -> dict[str, object]:
    """The first layer has a window. UnsupportedModel for sizes in no order known here."""
    kv_heads = fields.each("attention.head_count_kv", geometry.layers, 1, geometry.heads, geometry.heads)
    ffn = fields.each("feed_forward_length", geometry.layers, 1, 1 << 20)
    slides = fields.flags(PATTERN, geometry.layers) or (True,) * geometry.layers
    whole = [layer for layer, has_window in enumerate(slides) if not has_window]
    shared = fields.integer(SHARED, 0, geometry.layers - 1, 0)
    wide = [2 * ffn[0] if layer >= geometry.layers - shared else ffn[0] for layer in range(geometry.layers)]
    own = [layer for layer in whole if layer < geometry.layers - shared]
    has_keys_alone = any(f"model.layers.{layer}.self_attn.v_proj.weight" not in tensors for layer in own)
    of_whole = {kv_heads[layer] for layer in whole}
    others = {heads for layer, heads in enumerate(kv_heads) if slides[layer]}
    is_known = slides[0] and whole and len(of_whole) == 1 and others == {kv_heads[0]}
    if not is_known or list(ffn) not in (wide, [ffn[0]] * geometry.layers):
        raise UnsupportedModel(f"{fields.title}: sizes of layers that follow no pattern of Gemma 4 are not supported")
    return {
        "global_head_dim": fields.integer("attention.key_length", 2, 1024),
        "num_global_key_value_heads": kv_heads[whole[0]],
        "attention_k_eq_v": has_keys_alone,
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": len(set(ffn)) > 1,
        **_layer_inputs(fields, tensors),
        "partial_rotary_factor": 1.0,
    }


def several_streams(fields: ArchitectureFields, geometry: GgufGeometry, tensors: Checkpoint) -> dict[str, object]:
    """Files tell cutoffs of gates in deviations, and the rank of the path beside attention by its tensor."""
    cutoffs = fields.numbers(CUTOFFS, geometry.layers, -math.inf, 3.0)
    return {
        "altup_num_inputs": fields.integer(STREAMS, 2, 16),
        "altup_active_idx": fields.integer("altup.active_idx", 0, 16, 0),
        "laurel_rank": tensors.shape(PATH)[0] if PATH in tensors else None,
        "num_kv_shared_layers": fields.integer(SHARED, 0, geometry.layers - 1, 0),
        "activation_sparsity_pattern": [NormalDist().cdf(cutoff) for cutoff in cutoffs],
        **_layer_inputs(fields, tensors),
    }


def _layer_inputs(fields: ArchitectureFields, tensors: Checkpoint) -> dict[str, object]:
    return {
        "hidden_size_per_layer_input": fields.integer("embedding_length_per_layer_input", 0, 1 << 16, 0),
        "vocab_size_per_layer_input": tensors.shape(TABLE)[0] if TABLE in tensors else None,
    }
