"""What a family makes of a checkpoint: geometry, biases and the names of its tensors, as data."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.bundle.manifest import DiffusionSpec
from engine.bundle.model_spec import HeadForm, LayerAttention, ModelSpec, RotationKind
from engine.bundle.specs import EncoderSpec, RecurrentSpec
from engine.models.config_fields import ConfigFields
from engine.models.experts import ExpertDetails
from engine.models.layer_kinds import AltUp, LatentAttention, LayerInputs


class Activation(StrEnum):
    """Between the two layers of a feed-forward; the names are those of ONNX operators' forms."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"  # its usual approximation
    RELU = "relu"
    SQUARED_RELU = "squared_relu"
    GATED_SILU = "gated_silu"  # silu(gate) * up
    GATED_GELU = "gated_gelu"
    GATED_GELU_TANH = "gated_gelu_tanh"

    @property
    def matrices(self) -> int:
        """How many read what the feed-forward is given: up, and a gate where there is one."""
        return 2 if self.value.startswith("gated") else 1


class NormKind(StrEnum):
    """What norms of the stream divide by."""

    RMS = "rms"  # the root of the mean square
    LAYER = "layer"  # the deviation from the mean, which is taken off first


@dataclass(frozen=True, slots=True)
class ScoreHeadNames:
    """Two modules over a text's first row: `dense`, then tanh, then `scores`."""

    dense: str
    scores: str


@dataclass(frozen=True, slots=True)
class EncoderDetails:
    """Modules by name. Norms have weight and bias, and follow what they norm: `FamilyDetails.names.attention_norm` the
    sum after attention, `ffn_norm` that after the feed-forward."""

    spec: EncoderSpec
    activation: Activation = Activation.GELU
    embedding_norm: str = ""
    token_types: str = ""  # "" = the layers are a decoder's, and all but `spec` is told by `FamilyDetails`
    positions: str | None = None  # the table of positions, None = rotary
    table_rows: int = 0  # its rows
    score_head: ScoreHeadNames | None = None
    prompts: tuple[tuple[str, str], ...] = ()  # of the family's tasks, by name


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Module names in the checkpoint; `{layer}` stands for the layer's index. A tuple names matrices that are stacked
    along their output axis (query, key, value / gate, up) (already stacked: one). The tensor is the name plus `.weight`
    or `.bias`. Norms lie before attention and feed-forward, or, as `_post_norm`, behind what they give."""

    embedding: str = "model.embed_tokens"
    embedding_norm: str = ""  # of the embedding's rows, in place of the first layer's norm before attention
    attention_norm: str = "model.layers.{layer}.input_layernorm"
    attention_post_norm: str = ""
    ffn_post_norm: str = ""
    qkv: tuple[str, ...] = (
        "model.layers.{layer}.self_attn.q_proj",
        "model.layers.{layer}.self_attn.k_proj",
        "model.layers.{layer}.self_attn.v_proj",
    )
    q_norm: str = "model.layers.{layer}.self_attn.q_norm"
    k_norm: str = "model.layers.{layer}.self_attn.k_norm"
    sinks: str = ""  # a tensor, of the heads' scores that take a share of the weights, "" = there is none
    layer_scale: str = ""  # a tensor [1], of the stream behind a layer
    output: str = "model.layers.{layer}.self_attn.o_proj"
    ffn_norm: str = "model.layers.{layer}.post_attention_layernorm"
    gate_up: tuple[str, ...] = ("model.layers.{layer}.mlp.gate_proj", "model.layers.{layer}.mlp.up_proj")
    down: str = "model.layers.{layer}.mlp.down_proj"
    final_norm: str = "model.norm"
    head: str = "lm_head"


@dataclass(frozen=True, slots=True)
class RecurrentNames:
    """Modules and tensors of a recurrent layer; matrices are the name plus `.weight`, as is the norm. qkv_gate: stacked
    along outputs: queries, keys and values before the convolution, then the output's gate; of Mamba2 the gate, values,
    keys and queries, then what decay gives elsewhere."""

    qkv_gate: tuple[str, ...] = (
        "model.layers.{layer}.linear_attn.in_proj_qkv",
        "model.layers.{layer}.linear_attn.in_proj_z",
    )
    beta: str = "model.layers.{layer}.linear_attn.in_proj_b"
    decay: str = "model.layers.{layer}.linear_attn.in_proj_a"  # gives the argument of softplus, before dt_bias is added
    a_log: str = "model.layers.{layer}.linear_attn.A_log"  # tensor, the decay's logarithm
    dt_bias: str = "model.layers.{layer}.linear_attn.dt_bias"  # tensor
    conv: str = "model.layers.{layer}.linear_attn.conv1d"
    norm: str = "model.layers.{layer}.linear_attn.norm"  # "" = outputs of Mamba2 are not normed
    output: str = "model.layers.{layer}.linear_attn.out_proj"
    skip: str = ""  # tensor, what values of each head are added with, of Mamba2 alone


class QkNorm(StrEnum):
    """What the norms of queries and keys are taken over."""

    NONE = "none"
    HEADS = "heads"  # each head, before the rotation
    TURNED_HEADS = "turned heads"  # each head, after the rotation
    ALL = "all"  # all heads of a token together, before the rotation


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Constants. attention: of scores, 0 = 1 / sqrt(head size). residual: of what is added to the stream."""

    embedding: float = 1.0
    residual: float = 1.0
    attention: float = 0.0
    logits: float = 1.0


TEXT_ROOT = "model."  # what names of a text model begin with
FOLLOWING = "following."  # in names, behind the layer's: its feed-forward is a block of its own
Factors = Mapping[str, tuple[tuple[int, float], ...]]  # by module: from which output on, what they are multiplied with


@dataclass(frozen=True, slots=True)
class FamilyDetails:
    """What differs between families beyond sizes."""

    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    qk_norm: QkNorm = QkNorm.NONE
    attention: tuple[LayerAttention, ...] = ()  # of each layer, () = every row sees all columns
    local_theta: float = 0.0  # of layers that say `LOCAL`, where the config does not tell, 0 = there are none
    full_theta: float = 0.0  # of the other layers, 0 = the family's
    sees_both_ways: bool = False  # rows see those behind them too, and a window reaches half of its size to either side
    norm: NormKind = NormKind.RMS
    activation: Activation = Activation.GATED_SILU
    multipliers: Multipliers = Multipliers()
    attention_softcap: float = 0.0  # what scores are kept below, cap * tanh(x / cap), 0 = nothing
    logit_softcap: float = 0.0  # the same of logits
    diffusion: DiffusionSpec | None = None  # None = one token after the other
    names: WeightNames = WeightNames()
    recurrent_names: RecurrentNames = RecurrentNames()
    has_output_gate: bool = False  # the query projection has twice its outputs, for each head a query and then a gate
    norm_offset: float = 0.0  # added to the weight of every norm but that of recurrent outputs
    ignored: tuple[str, ...] = ()  # beginnings of names of tensors that the text model does without
    experts: ExpertDetails | None = None  # None = all layers have one feed-forward
    has_value_norm: bool = False  # each head of values is normed, without a weight
    layers_of_keys: frozenset[int] = frozenset()  # whose values are what their keys are made of
    layer_ffn: tuple[int, ...] = ()  # width of each layer's feed-forward, 0 = it has none, () = all have the model's
    gate_cutoffs: tuple[float | None, ...] = ()  # deviations above the mean below which a gate is 0 (arXiv 2506.06644)
    layer_inputs: LayerInputs | None = None
    altup: AltUp | None = None  # None = there is one stream
    latent: LatentAttention | None = None  # None = heads are projected from the stream
    images_both_ways: bool = False  # rows of an image see each other both ways, also under a window
    factors: Factors = field(default_factory=dict)  # of outputs of matrices
    blocks: tuple[tuple[int, int], ...] = ()  # the checkpoint's number of a layer and of what is `FOLLOWING`, () = its
    roots: tuple[str, ...] = ("model.",)  # what names may begin with, the first of them here

    @property
    def has_qk_norm(self) -> bool:
        """Whether there are norms of queries and keys."""
        return self.qk_norm is not QkNorm.NONE


def attention_biases(config: ConfigFields, default: bool = False) -> FamilyDetails:
    """Of a family whose config has one flag for all matrices of attention."""
    has_bias = config.flag("attention_bias", default)
    return FamilyDetails(qkv_bias=has_bias, output_bias=has_bias)


@dataclass(frozen=True, slots=True)
class Family:
    """One family: the name transformers gives its class, how its config is read, defaults where that is silent."""

    name: str
    architecture: str
    read_details: Callable[[ConfigFields], FamilyDetails]
    default_head_dim: int | None = None  # None = hidden / heads
    has_partial_rotary: bool = False
    default_rotary_share: float = 1.0  # of a head
    default_theta: float = 10_000.0
    default_epsilon: float = 1e-6
    is_interleaved: bool = False  # as in `RopeSpec`
    sections: tuple[int, ...] = ()  # as in `RopeReading`
    is_woven: bool = False
    is_tied: bool = False  # by default the head is the embedding
    read_ffn: Callable[[ConfigFields], int] | None = None  # None = `intermediate_size`
    text_group: str = ""  # where a model for more than text keeps the config of its text model, "" = it is the config
    text_defaults: Mapping[str, int] = field(default_factory=dict)  # what that leaves out
    text_root: str = TEXT_ROOT  # what its names begin with; the head lies beside that where it has a name of its own
    ignored: tuple[str, ...] = ()  # as in `FamilyDetails`
    read_recurrent: Callable[[ConfigFields, int], RecurrentSpec | None] | None = None  # the layers with a state
    translated: Callable[[Mapping[str, object]], Mapping[str, object]] | None = None  # to others' words


@dataclass(frozen=True, slots=True)
class Network:
    """Everything the compiler has to know about one checkpoint before it reads weights. Lengths in tokens."""

    spec: ModelSpec
    details: FamilyDetails
    norm_epsilon: float
    max_position: int  # that the checkpoint was made for
    compiled_context: int  # that this bundle is made for
    encoder: EncoderDetails | None = None  # None for a model that generates
    reads_images: bool = False  # rows may come in place of tokens
    deepstack: int = 0  # as in `VisionSpec`
    may_be_untied: bool = False  # config.json ties the head and does not; it is tied unless the checkpoint has one

    @property
    def images_both_ways(self) -> bool:
        return self.reads_images and self.details.images_both_ways

    @property
    def query_width(self) -> int:
        """Numbers of all queries of a token."""
        return self.spec.heads * self.spec.head_dim

    @property
    def query_outputs(self) -> int:
        """Outputs of the query projection: the queries, and a gate of as many numbers where there is one."""
        return self.query_width * (2 if self.details.has_output_gate else 1)

    @property
    def key_width(self) -> int:
        """Outputs of the key projection, and of the value projection."""
        return self.spec.kv_heads * self.spec.head_dim

    def heads_of(self, layer: int) -> HeadForm:
        return self.spec.heads_of(self.spec.attention_of(layer))

    @property
    def odd_head_dim(self) -> int:
        """A head size that 8 does not divide, if some layer has one, else the model's."""
        sizes = (self.spec.heads_of(form).head_dim for form in self.spec.layer_forms)
        return next((size for size in sizes if size % 8), self.spec.head_dim)

    def qkv_outputs(self, layer: int) -> tuple[int, ...]:
        """What the matrices that read the first norm give: queries, and the keys and values that a layer has; or what
        queries are made of, then what keys and values are, then what turns of the keys."""
        heads, latent = self.heads_of(layer), self.details.latent
        if latent is not None:
            return latent.query_rank or heads.query_width, latent.kv_rank, latent.turned
        query = heads.query_width * (2 if self.details.has_output_gate else 1)
        keys_and_values = 2 - (layer in self.details.layers_of_keys) if self.spec.owner_of(layer) == layer else 0
        return (query,) + (heads.key_width,) * keys_and_values

    def qkv_names(self, layer: int) -> tuple[str, ...]:
        names = self.details.names.qkv
        return names if len(names) == 1 else names[: len(self.qkv_outputs(layer))]

    def mixer_names(self, layer: int) -> tuple[str, ...]:
        """Modules that read a layer's first norm, without steps of gated DeltaNet: of attention, then of recurrence."""
        names = self.qkv_names(layer) if layer in self.spec.attention_layers else ()
        return names + (self.details.recurrent_names.qkv_gate if self.spec.recurrence_of(layer) else ())

    def output_names(self, layer: int) -> tuple[str, ...]:
        """Modules behind attention and recurrence in the same order, whose outputs are added."""
        names = (self.details.names.output,) if layer in self.spec.attention_layers else ()
        return names + ((self.details.recurrent_names.output,) if self.spec.recurrence_of(layer) else ())

    def attended_width(self, layer: int) -> int:
        """Numbers that attention of a layer gives to its output projection."""
        latent = self.details.latent
        return self.heads_of(layer).query_width if latent is None else self.spec.heads * latent.value_dim

    def ffn_of(self, layer: int) -> int:
        """The width of a layer's feed-forward."""
        return self.details.layer_ffn[layer] if self.details.layer_ffn else self.spec.ffn

    def has_feed_forward(self, layer: int) -> bool:
        return layer in self.expert_layers or self.ffn_of(layer) > 0

    def ffn_names(self, layer: int) -> tuple[tuple[str, ...], str]:
        """Modules of what every token goes through in a layer: up, with a gate before it where there is one, and down;
        () and "" where there are only experts, or nothing."""
        names, experts = self.details.names, self.details.experts
        if experts is not None and layer in self.expert_layers:
            return experts.names.shared_gate_up, experts.names.shared_down
        return (names.gate_up, names.down) if self.has_feed_forward(layer) else ((), "")

    def gate_cutoff(self, layer: int) -> float | None:
        """Where a layer cuts its gate, in deviations above the mean, None = nowhere."""
        return self.details.gate_cutoffs[layer] if self.details.gate_cutoffs else None

    @property
    def attention_scale(self) -> float:
        return self.details.multipliers.attention or 1.0 / math.sqrt(self.spec.head_dim)

    @property
    def logit_gain(self) -> float:
        """What the last norm is multiplied with, so that its head gives logits, or what tanh takes of capped ones."""
        return self.details.multipliers.logits / (self.details.logit_softcap or 1.0)

    def attention_norm(self, layer: int) -> str:
        """The norm before attention of a layer, "" = there is none."""
        names = self.details.names
        return "" if layer == 0 and names.embedding_norm else names.attention_norm

    def ffn_norm(self, layer: int) -> str:
        """The norm before the feed-forward of a layer, "" = there is none."""
        return self.details.names.ffn_norm if self.has_feed_forward(layer) else ""

    @property
    def expert_layers(self) -> frozenset[int]:
        return frozenset(self.spec.experts.layers if self.spec.experts else ())

    @property
    def other_stream(self) -> str:
        """What layers have that are not x + f(norm(x)) twice, with norms of heads and silu, by name; "" = nothing."""
        details, names = self.details, self.details.names
        norms = (names.attention_norm, names.ffn_norm, not names.attention_post_norm, not names.ffn_post_norm)
        unusual = {
            "a norm behind attention or feed-forward": not all(norms),
            "a feed-forward with GELU": details.activation is not Activation.GATED_SILU,
            "a norm of all heads, or of turned ones": details.qk_norm in (QkNorm.ALL, QkNorm.TURNED_HEADS),
            "a multiplier": details.multipliers != Multipliers(attention=details.multipliers.attention),
            "a cap of scores or logits": bool(details.attention_softcap or details.logit_softcap),
        }
        return next((name for name, has in unusual.items() if has), self.own_operators)

    @property
    def own_operators(self) -> str:
        """What layers have that only operators of onnxruntime's CPU compute, by name; "" = nothing."""
        if self.details.experts is not None:
            return "experts"
        return "a rotation of neighbours" if self.spec.rope.is_interleaved else ""

    @property
    def own_forms(self) -> str:
        """What some layers have that only float graphs of segments know, by name; "" = nothing."""
        spec, details = self.spec, self.details
        unusual = {
            "layers that read the keys and values of others": bool(spec.shared_layers),
            "heads of several sizes": spec.has_unlike_caches,
            "several streams": spec.streams > 1,
            "inputs of each layer": bool(spec.layer_inputs),
            "gates that are cut": bool(details.gate_cutoffs),
            "layers without a feed-forward": 0 in details.layer_ffn,
            "feed-forwards of several widths": bool(details.layer_ffn),
            "a norm of values": details.has_value_norm,
            "keys and values made of latents": details.latent is not None,
            "scores that grow with the position": bool(spec.rope.gain),
            "a factor of each layer": bool(details.names.layer_scale),
            "attention beside recurrence": spec.recurrent is not None and spec.recurrent.is_beside,
        }
        return next((name for name, has in unusual.items() if has), "")

    @property
    def unlike_layers(self) -> str:
        """What attention of some layer has that graphs over one pool lack, by name; "" = nothing."""
        if self.own_forms:
            return self.own_forms
        if self.spec.has_sinks:
            return "sinks of heads"
        return "windows of several sizes" if len({*self.spec.layer_windows} - {0}) > 1 else ""

    @property
    def own_sights(self) -> str:
        """What a layer sees or turns by that others do not, by name; "" = nothing."""
        spec = self.spec
        if any(spec.layer_windows):
            return f"a window of {max(spec.layer_windows)} tokens"
        rotations = {spec.attention_of(layer).rotation for layer in spec.attention_layers}
        return "layers with rotations of their own" if len(rotations) > 1 or RotationKind.LOCAL in rotations else ""
