"""Nemotron-H: blocks that are Mamba2, attention without positions, a feed-forward with squared ReLU, or experts.

Here a layer is a block of one of the first two kinds, with the block of one of the others that may follow it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.bundle.model_spec import LayerAttention, RotationKind
from engine.bundle.specs import RecurrentSpec
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields
from engine.models.expert_families import grouped_routing
from engine.models.experts import ExpertDetails, ExpertForm, ExpertKeys, ExpertNames, read_experts
from engine.models.mamba2 import ATTENTION, MAMBA, Mamba2Keys, mamba2_spec, mamba_names
from engine.models.network import FOLLOWING, Activation, Family, FamilyDetails, WeightNames

FEED_FORWARD, EXPERTS = "mlp", "moe"
_LETTERS = {"M": MAMBA[0], "*": ATTENTION[0], "-": FEED_FORWARD, "E": EXPERTS}
_LAYER = "backbone.layers.{layer}"
_MIXER = f"{_LAYER}.mixer"
_BEHIND = f"{_LAYER}.{FOLLOWING}mixer"
_NAMES = WeightNames(
    embedding="backbone.embeddings",
    attention_norm=f"{_LAYER}.norm",
    qkv=(f"{_MIXER}.q_proj", f"{_MIXER}.k_proj", f"{_MIXER}.v_proj"),
    output=f"{_MIXER}.o_proj",
    ffn_norm=f"{_LAYER}.{FOLLOWING}norm",
    gate_up=(f"{_BEHIND}.up_proj",),
    down=f"{_BEHIND}.down_proj",
    final_norm="backbone.norm_f",
)
_OF_EACH, _IN_GGUF = f"{_BEHIND}.experts.{{expert}}", f"model.layers.{{layer}}.{FOLLOWING}mlp.experts"
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
_NOTHING = -1


@dataclass(frozen=True, slots=True)
class _Layer:
    """block, following: which of the blocks they are. kind: of what follows, "" = nothing does."""

    block: int
    is_recurrent: bool
    following: int = _NOTHING
    kind: str = ""


def _kinds(config: ConfigFields) -> list[str]:
    """Of all blocks."""
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
    """What the config says under names of its own."""
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


def _details(config: ConfigFields) -> FamilyDetails:
    for key in ("use_bias", "mlp_bias"):
        if config.flag(key, False):
            raise UnsupportedModel(f"{key} is not supported for nemotron_h")
    layers, has_bias = _layers(config), config.flag("attention_bias", False)
    width = config.integer("intermediate_size", 1, 1 << 20)
    return FamilyDetails(
        qkv_bias=has_bias,
        output_bias=has_bias,
        attention=(LayerAttention(0, RotationKind.NONE),) * len(layers),
        activation=Activation.SQUARED_RELU,
        names=_NAMES,
        recurrent_names=mamba_names(_MIXER),
        ignored=("mtp.",),
        experts=_experts(config, tuple(n for n, layer in enumerate(layers) if layer.kind == EXPERTS)),
        layer_ffn=tuple(width if layer.kind == FEED_FORWARD else 0 for layer in layers),
        blocks=tuple((layer.block, layer.following) for layer in layers),
        roots=("backbone.", "model."),
    )


def _experts(config: ConfigFields, listed: tuple[int, ...]) -> ExpertDetails | None:
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
    return mamba2_spec(config, layers, found, _KEYS)


NEMOTRON_H = Family(
    "nemotron_h",
    "NemotronHForCausalLM",
    _details,
    default_head_dim=128,
    default_epsilon=1e-5,
    read_recurrent=_read_recurrent,
    translated=_usual,
)
