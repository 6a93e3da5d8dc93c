"""How large a network of a GGUF file is, which the places of its numbers depend on."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from engine.bundle.specs import MOST_KERNEL, RecurrentSpec
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.gguf.architectures import GgufArchitecture
from engine.compile.sources.gguf.header import GgufHeader
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields

MOST_ITEMS = 1025  # of an array: one for each layer, and one more where there are too many


class ArchitectureFields(ConfigFields):
    """As `ConfigFields`, by keys without the architecture's name. title: of the file."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self.title, self.name = header.path.name, architecture
        prefix = f"{architecture}."
        plain = {
            key: value[:MOST_ITEMS].tolist() if isinstance(value, np.ndarray) else value
            for key, value in header.metadata.items()
            if key.startswith(prefix)
        }
        super().__init__(plain, self.title, prefix=prefix)

    def is_array(self, key: str) -> bool:
        return isinstance(self.raw(key), list)

    def each(self, key: str, count: int, low: int, high: int, default: int | None = None) -> tuple[int, ...]:
        """An integer for each of so many layers: an array of them, or one for all."""
        listed = self.raw(key)
        if not isinstance(listed, list):
            return (self.integer(key, low, high, default),) * count
        if len(listed) != count or not all(isinstance(item, int) and low <= item <= high for item in listed):
            found = brief(listed[:9])
            raise CompileError(f"{self.title}: {self.key(key)} must be {count} integers from {low} to {high}: {found}")
        return tuple(listed)

    def flags(self, key: str, count: int) -> tuple[bool, ...] | None:
        """A truth value for each of so many layers, None when there is none."""
        return tuple(map(bool, self.each(key, count, 0, 1))) if self.has(key) else None


KEY_LENGTH_OF_WINDOWS = "attention.key_length_swa"  # where layers with a window have heads of their own
FULL_ATTENTION_INTERVAL = 4  # of files that do not say which layers are recurrent


@dataclass(frozen=True, slots=True)
class GgufGeometry:
    """head_dim: rows of one head in the matrix of keys. recurrent: None where all layers have attention. drafting:
    layers behind the others that guess tokens, which the text model does without; arrays tell of them too."""

    layers: int
    heads: int
    head_dim: int
    recurrent: RecurrentSpec | None = None
    drafting: int = 0

    @property
    def blocks(self) -> int:
        return self.layers + self.drafting


def read_geometry(header: GgufHeader, architecture: GgufArchitecture) -> GgufGeometry:
    """CompileError when metadata is missing or out of bounds, UnsupportedModel by name."""
    fields = ArchitectureFields(header, architecture.name)
    hidden, heads = fields.integer("embedding_length", 1, 1 << 16), fields.integer("attention.head_count", 1, 1024)
    head_dim = fields.integer("attention.key_length", 2, 1024, max(hidden // heads, 2))
    value_dim = fields.integer("attention.value_length", 2, 1024, head_dim)
    if fields.has(KEY_LENGTH_OF_WINDOWS):
        head_dim = fields.integer(KEY_LENGTH_OF_WINDOWS, 2, 1024)
        value_dim = fields.integer("attention.value_length_swa", 2, 1024, head_dim)
    if architecture.has_latents:
        value_dim = head_dim = fields.integer("attention.key_length_mla", 2, 1024, head_dim)
    if value_dim != head_dim:
        raise UnsupportedModel(f"{fields.title}: keys and values of different lengths are not supported")
    if head_dim % 2:
        raise CompileError(f"{fields.title}: heads of {head_dim} numbers cannot be turned in pairs")
    blocks = fields.integer("block_count", 1, 1024)
    drafting = fields.integer("nextn_predict_layers", 0, blocks - 1, 0)
    recurrent = _recurrent(fields, blocks - drafting, blocks) if architecture.is_hybrid else None
    return GgufGeometry(blocks - drafting, heads, head_dim, recurrent, drafting)


def _recurrent(fields: ArchitectureFields, layers: int, blocks: int) -> RecurrentSpec:
    """Which of the layers are recurrent, and how large. blocks: layers with those that draft."""
    kinds = fields.flags("attention.recurrent_layers", blocks)
    if kinds is None:
        interval = fields.integer("full_attention_interval", 1, 1024, FULL_ATTENTION_INTERVAL)
        kinds = tuple((layer + 1) % interval != 0 for layer in range(layers))
    found = tuple(layer for layer, is_recurrent in enumerate(kinds[:layers]) if is_recurrent)
    if not found:
        raise UnsupportedModel(f"{fields.title}: no layer is recurrent: that is not supported for this architecture")
    heads, inner = fields.integer("ssm.time_step_rank", 1, 1024), fields.integer("ssm.inner_size", 2, 1 << 20)
    value_dim = inner // heads
    if inner % heads or not 2 <= value_dim <= 1024:
        product = f"{fields.key('ssm.time_step_rank')} ({heads}) times 2 to 1024"
        raise CompileError(f"{fields.title}: {fields.key('ssm.inner_size')} must be {product}, it is {inner}")
    spec = RecurrentSpec(
        layers=found,
        key_heads=fields.integer("ssm.group_count", 1, 1024),
        value_heads=heads,
        key_dim=fields.integer("ssm.state_size", 2, 1024),
        value_dim=value_dim,
        kernel=fields.integer("ssm.conv_kernel", 2, MOST_KERNEL),
    )
    if fault := spec.fault(layers):
        raise UnsupportedModel(f"{fields.title}: {fault}")
    return spec


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
