"""What a family makes of a checkpoint: geometry, biases and the names of its tensors, as data."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.bundle.manifest import DiffusionSpec, ModelSpec
from engine.bundle.recurrent import RecurrentSpec
from engine.models.config_fields import ConfigFields
from engine.models.encoder_details import EncoderDetails


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Module names in the checkpoint; `{layer}` stands for the layer's index.

    A tuple names matrices that are stacked along their output axis (query, key, value / gate, up); a family that
    stores them stacked already has a tuple of one. The tensor is the name plus `.weight` or `.bias`.
    """

    embedding: str = "model.embed_tokens"
    attention_norm: str = "model.layers.{layer}.input_layernorm"
    qkv: tuple[str, ...] = (
        "model.layers.{layer}.self_attn.q_proj",
        "model.layers.{layer}.self_attn.k_proj",
        "model.layers.{layer}.self_attn.v_proj",
    )
    q_norm: str = "model.layers.{layer}.self_attn.q_norm"
    k_norm: str = "model.layers.{layer}.self_attn.k_norm"
    output: str = "model.layers.{layer}.self_attn.o_proj"
    ffn_norm: str = "model.layers.{layer}.post_attention_layernorm"
    gate_up: tuple[str, ...] = ("model.layers.{layer}.mlp.gate_proj", "model.layers.{layer}.mlp.up_proj")
    down: str = "model.layers.{layer}.mlp.down_proj"
    final_norm: str = "model.norm"
    head: str = "lm_head"


@dataclass(frozen=True, slots=True)
class RecurrentNames:
    """Modules and tensors of a recurrent layer; matrices are the name plus `.weight`, as is the norm.

    qkv_gate: stacked along outputs: queries, keys and values before the convolution, then the output's gate.
    decay: gives the argument of softplus, to which the tensor dt_bias is added. a_log: tensor, the decay's logarithm.
    """

    qkv_gate: tuple[str, ...] = (
        "model.layers.{layer}.linear_attn.in_proj_qkv",
        "model.layers.{layer}.linear_attn.in_proj_z",
    )
    beta: str = "model.layers.{layer}.linear_attn.in_proj_b"
    decay: str = "model.layers.{layer}.linear_attn.in_proj_a"
    a_log: str = "model.layers.{layer}.linear_attn.A_log"
    dt_bias: str = "model.layers.{layer}.linear_attn.dt_bias"
    conv: str = "model.layers.{layer}.linear_attn.conv1d"
    norm: str = "model.layers.{layer}.linear_attn.norm"
    output: str = "model.layers.{layer}.linear_attn.out_proj"


@dataclass(frozen=True, slots=True)
class FamilyDetails:
    """What differs between families beyond sizes. sliding_window: columns a row may see, None = all of them.

    has_output_gate: the query projection has twice its outputs, for each head a query and then a gate.
    norm_offset: added to the weight of every norm but that of recurrent outputs. ignored: beginnings of names of
    tensors that the text model does without. diffusion: None = one token after the other.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    has_qk_norm: bool = False
    sliding_window: int | None = None
    diffusion: DiffusionSpec | None = None
    names: WeightNames = WeightNames()
    recurrent_names: RecurrentNames = RecurrentNames()
    has_output_gate: bool = False
    norm_offset: float = 0.0
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """One family: the name transformers gives its class, and how its config is read.

    default_head_dim: what transformers assumes when the config does not say, None = hidden / heads.
    default_rotary_share: the same of the part of a head that turns. text_group: where the config of a model for more
    than text keeps that of its text model, "" = it is the config. read_recurrent(config, layers): the layers without
    keys and values, for families that have such.
    """

    name: str
    architecture: str
    read_details: Callable[[ConfigFields], FamilyDetails]
    default_head_dim: int | None = None
    has_partial_rotary: bool = False
    default_rotary_share: float = 1.0
    text_group: str = ""
    read_recurrent: Callable[[ConfigFields, int], RecurrentSpec] | None = None


@dataclass(frozen=True, slots=True)
class Network:
    """Everything the compiler has to know about one checkpoint before it reads weights.

    max_position: tokens the checkpoint was made for. compiled_context: tokens this bundle is made for. encoder: None
    for a model that generates.
    """

    spec: ModelSpec
    details: FamilyDetails
    norm_epsilon: float
    max_position: int
    compiled_context: int
    encoder: EncoderDetails | None = None

    @property
    def query_width(self) -> int:
        """Outputs of the query projection."""
        return self.spec.heads * self.spec.head_dim

    @property
    def key_width(self) -> int:
        """Outputs of the key projection, and of the value projection."""
        return self.spec.kv_heads * self.spec.head_dim
