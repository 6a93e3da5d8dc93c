"""Mamba2 layers, as several families have them: their sizes and the names of their tensors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.bundle.model_spec import LayerAttention, RotationKind
from engine.bundle.specs import MOST_KERNEL, RecurrentKind, RecurrentSpec
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models import network
from engine.models.config_fields import ConfigFields
from engine.models.dense_families import GRANITE
from engine.models.expert_families import granite_experts, grouped_routing
from engine.models.experts import ExpertDetails, ExpertForm, ExpertKeys, ExpertNames, read_experts
from engine.models.layer_kinds import layer_count, recurrent_layers

MAMBA, ATTENTION = ("linear_attention", "mamba"), ("full_attention", "attention")  # types of layers, old and new
_UNLIMITED = (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}])  # the last as transformers writes it


def mamba_names(mixer: str) -> network.RecurrentNames:
    """mixer: the module of a layer."""
    return network.RecurrentNames(
        qkv_gate=(f"{mixer}.in_proj",),
        a_log=f"{mixer}.A_log",
        dt_bias=f"{mixer}.dt_bias",
        conv=f"{mixer}.conv1d",
        norm=f"{mixer}.norm",
        output=f"{mixer}.out_proj",
        skip=f"{mixer}.D",
    )


MAMBA_NAMES = mamba_names("model.layers.{layer}.mamba")


@dataclass(frozen=True, slots=True)
class Mamba2Keys:
    """Keys of config.json. inner: of all values of a token, "" = they are as many as the heads have."""

    heads: str = "mamba_n_heads"
    groups: str = "mamba_n_groups"
    state: str = "mamba_d_state"
    head_dim: str = "mamba_d_head"
    kernel: str = "mamba_d_conv"
    inner: str = "mamba_d_ssm"


USUAL = Mamba2Keys()


def mamba2_spec(
    config: ConfigFields, found: tuple[int, ...], keys: Mamba2Keys = USUAL, is_beside: bool = False
) -> RecurrentSpec:
    """Of the layers found. UnsupportedModel for what is not implemented."""
    if config.flag("mamba_proj_bias", False):
        raise UnsupportedModel("mamba_proj_bias is not supported")
    limit = config.raw("time_step_limit")
    if limit not in _UNLIMITED:
        raise UnsupportedModel(f"time_step_limit {brief(limit)} is not supported, only 0 to infinity is")
    heads = config.integer(keys.heads, 1, 1024, 128)
    return RecurrentSpec(
        layers=found,
        key_heads=config.integer(keys.groups, 1, 1024, 1),
        value_heads=heads,
        key_dim=config.integer(keys.state, 2, 1024, 256),
        value_dim=_head_dim(config, keys, heads),
        kernel=config.integer(keys.kernel, 2, MOST_KERNEL, 4),
        kind=RecurrentKind.MAMBA2,
        is_beside=is_beside,
    )


def _head_dim(config: ConfigFields, keys: Mamba2Keys, heads: int) -> int:
    if not keys.inner:
        return config.integer(keys.head_dim, 2, 1024)
    inner = config.integer("mamba_expand", 1, 64, 2) * config.integer("hidden_size", 1, 1 << 16)
    inner = config.integer(keys.inner, 1, 1 << 20, inner)
    is_told = config.raw(keys.head_dim) not in (None, "auto")
    head_dim = config.integer(keys.head_dim, 2, 1024) if is_told else inner // heads
    if head_dim * heads != inner or not 2 <= head_dim <= 1024:
        raise CompileError(
            f"config.json: {inner} values of a Mamba2 layer are not {keys.heads} ({heads}) times 2 to 1024"
        )
    return head_dim


_LAYER = "model.layers.{layer}"
_GATE, _UP, _DOWN = (f"{_LAYER}.feed_forward.{name}_proj" for name in ("gate", "up", "down"))
_FALCON_NAMES = network.WeightNames(
    ffn_norm=f"{_LAYER}.pre_ff_layernorm", gate_up=(_GATE, _UP), down=_DOWN, final_norm="model.final_layernorm"
)
_LEAST_FACTOR, _MOST_FACTOR = 1e-6, 1e6


def _falcon_details(config: ConfigFields) -> network.FamilyDetails:
    for key in ("attention_bias", "mlp_bias", "projectors_bias"):
        if config.flag(key, False):
            raise UnsupportedModel(f"{key} is not supported for falcon_h1")
    has_norm = config.flag("mamba_rms_norm", False)
    if has_norm and config.flag("mamba_norm_before_gate", True):
        raise UnsupportedModel("mamba_norm_before_gate is not supported")
    return network.FamilyDetails(
        names=_FALCON_NAMES,
        recurrent_names=MAMBA_NAMES if has_norm else replace(MAMBA_NAMES, norm=""),
        multipliers=network.Multipliers(
            embedding=_multiplier(config, "embedding_multiplier"), logits=_multiplier(config, "lm_head_multiplier")
        ),
        factors=_factors(config),
    )


def _multiplier(config: ConfigFields, key: str) -> float:
    return config.number(key, _LEAST_FACTOR, _MOST_FACTOR, 1.0)


def _multipliers(config: ConfigFields, key: str, count: int) -> tuple[float, ...]:
    return (1.0,) * count if config.raw(key) is None else config.numbers(key, count, _LEAST_FACTOR, _MOST_FACTOR)


def _factors(config: ConfigFields) -> network.Factors:
    """Of the outputs of matrices, which are multiplied with constants, as their inputs are."""
    names, spec = network.WeightNames(), read_falcon_mamba2(config, layer_count(config))
    of_gate, of_down = _multipliers(config, "mlp_multipliers", 2)
    heads_in, of_keys = (_multiplier(config, key) for key in ("attention_in_multiplier", "key_multiplier"))
    parts = spec.value_width, spec.value_width, spec.key_width, spec.key_width, spec.value_heads
    of_parts, state_in = _multipliers(config, "ssm_multipliers", 5), _multiplier(config, "ssm_in_multiplier")
    query, key, value = names.qkv
    found: network.Factors = {
        query: ((0, heads_in),),
        key: ((0, heads_in * of_keys),),
        value: ((0, heads_in),),
        names.output: ((0, _multiplier(config, "attention_out_multiplier")),),
        MAMBA_NAMES.output: ((0, _multiplier(config, "ssm_out_multiplier")),),
        MAMBA_NAMES.qkv_gate[0]: tuple((sum(parts[:part]), state_in * factor) for part, factor in enumerate(of_parts)),
        _GATE: ((0, of_gate),),
        _DOWN: ((0, of_down),),
    }
    return {name: runs for name, runs in found.items() if any(factor != 1.0 for _, factor in runs)}


def read_falcon_mamba2(config: ConfigFields, layers: int) -> RecurrentSpec:
    return mamba2_spec(config, tuple(range(layers)), is_beside=True)


FALCON_H1 = network.Family(
    "falcon_h1", "FalconH1ForCausalLM", _falcon_details, default_epsilon=1e-5, read_recurrent=read_falcon_mamba2
)


# What GGUF files say: gate and up are two matrices, and a feed-forward has its usual names.
SPLIT_MLP = "split_shared_mlp"
_SHARED = "model.layers.{layer}.shared_mlp"
_GRANITE_NAMES = network.WeightNames(gate_up=(f"{_SHARED}.input_linear",), down=f"{_SHARED}.output_linear")


def _granite_details(config: ConfigFields) -> network.FamilyDetails:
    kinds = layer_count(config) * (LayerAttention(0, RotationKind.NONE),)
    is_split = config.flag(SPLIT_MLP, False)
    return replace(
        GRANITE.read_details(config),
        names=network.WeightNames() if is_split else _GRANITE_NAMES,
        recurrent_names=MAMBA_NAMES,
        attention=() if config.raw("position_embedding_type") == "rope" else kinds,
        experts=granite_experts(config, is_split) if config.integer("num_local_experts", 0, 4096, 0) else None,
    )


def _granite_mamba2(config: ConfigFields, layers: int) -> RecurrentSpec | None:
    found = recurrent_layers(config.raw("layer_types"), layers, MAMBA, ATTENTION)
    return mamba2_spec(config, found) if found else None


GRANITE4 = replace(
    GRANITE,
    name="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    read_details=_granite_details,
    read_ffn=lambda config: config.integer("shared_intermediate_size", 1, 1 << 20),
    read_recurrent=_granite_mamba2,
)


FEED_FORWARD, EXPERTS = "mlp", "moe"
_LETTERS = {"M": MAMBA[0], "*": ATTENTION[0], "-": FEED_FORWARD, "E": EXPERTS}
_BLOCK = "backbone.layers.{layer}"
_MIXER = f"{_BLOCK}.mixer"
_BEHIND = f"{_BLOCK}.{network.FOLLOWING}mixer"
_NEMOTRON_NAMES = network.WeightNames(
    embedding="backbone.embeddings",
    attention_norm=f"{_BLOCK}.norm",
    qkv=(f"{_MIXER}.q_proj", f"{_MIXER}.k_proj", f"{_MIXER}.v_proj"),
    output=f"{_MIXER}.o_proj",
    ffn_norm=f"{_BLOCK}.{network.FOLLOWING}norm",
    gate_up=(f"{_BEHIND}.up_proj",),
    down=f"{_BEHIND}.down_proj",
    final_norm="backbone.norm_f",
)
_OF_EACH, _IN_GGUF = f"{_BEHIND}.experts.{{expert}}", f"model.layers.{{layer}}.{network.FOLLOWING}mlp.experts"
_EXPERT_NAMES = ExpertNames(
    router=f"{_BEHIND}.gate",
    forms=(
        ExpertForm((f"{_OF_EACH}.up_proj.weight",), f"{_OF_EACH}.down_proj.weight"),
        ExpertForm((f"{_IN_GGUF}.up_proj.weight",), f"{_IN_GGUF}.down_proj.weight"),
    ),
    choice_bias=f"{_BEHIND}.gate.e_score_correction_bias",
    shared_gate_up=(f"{_BEHIND}.shared_experts.up_proj",),
    shared_down=f"{_BEHIND}.shared_experts.down_proj",
)
_KEYS = Mamba2Keys("mamba_num_heads", "n_groups", "ssm_state_size", "mamba_head_dim", "conv_kernel", inner="")


@dataclass(frozen=True, slots=True)
class _Layer:
    """block, following: which of the blocks they are. kind: of what follows, "" = nothing does."""

    block: int
    is_recurrent: bool
    following: int = -1
    kind: str = ""


def _kinds(config: ConfigFields) -> list[str]:
    listed = config.raw("layers_block_type") or config.raw("hybrid_override_pattern")
    found = [_LETTERS.get(kind, kind) for kind in listed] if isinstance(listed, list | str) else []
    if not found:
        raise CompileError("config.json: layers_block_type must name the type of each layer")
    for kind in found:
        if kind not in (*MAMBA, *ATTENTION, FEED_FORWARD, EXPERTS):
            raise UnsupportedModel(f"layer type {brief(kind)} is not supported")
    return found


def _layers(config: ConfigFields) -> list[_Layer]:
    found: list[_Layer] = []
    for block, kind in enumerate(_kinds(config)):
        if kind in (*MAMBA, *ATTENTION):
            found.append(_Layer(block, kind in MAMBA))
        elif not found or found[-1].kind:
            raise UnsupportedModel(f"layer {block} is of type {kind!r} and follows neither Mamba2 nor attention")
        else:
            found[-1] = _Layer(found[-1].block, found[-1].is_recurrent, block, kind)
    return found


def _usual(values: Mapping[str, object]) -> dict[str, object]:
    config = ConfigFields(values)
    activation = config.text("mamba_hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"mamba_hidden_act {brief(activation)} is not supported")
    return {
        **values,
        "num_hidden_layers": len(_layers(config)),
        "hidden_act": config.text("mlp_hidden_act", "relu2"),
        "rms_norm_eps": config.raw("layer_norm_epsilon") or config.raw("rms_norm_eps"),
    }


def _nemotron_details(config: ConfigFields) -> network.FamilyDetails:
    for key in ("use_bias", "mlp_bias"):
        if config.flag(key, False):
            raise UnsupportedModel(f"{key} is not supported for nemotron_h")
    layers, width = _layers(config), config.integer("intermediate_size", 1, 1 << 20)
    return replace(
        network.attention_biases(config),
        attention=(LayerAttention(0, RotationKind.NONE),) * len(layers),
        activation=network.Activation.SQUARED_RELU,
        names=_NEMOTRON_NAMES,
        recurrent_names=mamba_names(_MIXER),
        ignored=("mtp.",),
        experts=_nemotron_experts(config, tuple(n for n, layer in enumerate(layers) if layer.kind == EXPERTS)),
        layer_ffn=tuple(width if layer.kind == FEED_FORWARD else 0 for layer in layers),
        blocks=tuple((layer.block, layer.following) for layer in layers),
        roots=("backbone.", "model."),
    )


def _nemotron_experts(config: ConfigFields, listed: tuple[int, ...]) -> ExpertDetails | None:
    if not listed:
        return None
    if config.raw("moe_latent_size") is not None:
        raise UnsupportedModel("moe_latent_size is not supported")
    keys = ExpertKeys(count="n_routed_experts", shared="moe_shared_expert_intermediate_size")
    spec = read_experts(config, keys, listed)
    return ExpertDetails(spec, grouped_routing(config, spec.count), _EXPERT_NAMES)


def _read_recurrent(config: ConfigFields, layers: int) -> RecurrentSpec:
    found = tuple(n for n, layer in enumerate(_layers(config)) if layer.is_recurrent)
    if not found:
        raise UnsupportedModel("no layer has Mamba2: that is not supported for nemotron_h")
    return mamba2_spec(config, found, _KEYS)


NEMOTRON_H = network.Family(
    "nemotron_h",
    "NemotronHForCausalLM",
    _nemotron_details,
    default_head_dim=128,
    default_epsilon=1e-5,
    read_recurrent=_read_recurrent,
    translated=_usual,
)
