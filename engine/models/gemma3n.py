"""Gemma 3n: four streams, gates of which the first layers keep the highest, inputs of each layer, and last layers that
read the keys and values of earlier ones.

Checkpoints for text, images and sound serve their text model.
"""

from dataclasses import replace
from statistics import NormalDist

from engine.bundle.model_spec import LayerAttention, RotationKind
from engine.errors import UnsupportedModel
from engine.models.config_fields import ConfigFields
from engine.models.gemma4 import OTHER_SENSES, read_layer_inputs, unread_of_shared
from engine.models.layer_kinds import cache_owners, declared_window, layer_count, sliding_layers
from engine.models.network import Activation, Family, FamilyDetails, Multipliers, QkNorm, WeightNames
from engine.models.post_norm_families import GEMMA_NAMES
from engine.models.qwen3_5 import NESTED, TEXT, nested
from engine.models.streams import AltUp, LayerInputs

# Where the config does not say (transformers `Gemma3nTextConfig`).
_WINDOW, _SHARED, _LOCAL_THETA = 512, 15, 10_000.0
_SPARSE_LAYERS, _SPARSITY = 10, 0.95
_MOST_STREAMS = 16


def _attention(config: ConfigFields) -> tuple[LayerAttention, ...]:
    window = declared_window(config) or _WINDOW
    sliding = sliding_layers(config, lambda layer: bool((layer + 1) % 5))
    owners = cache_owners(config, sliding, _SHARED)
    kinds = LayerAttention(0, RotationKind.MODEL), LayerAttention(window, RotationKind.LOCAL)
    return tuple(
        LayerAttention(kinds[is_sliding].window, kinds[is_sliding].rotation, cache_of=owner)
        for is_sliding, owner in zip(sliding, owners, strict=True)
    )


def _widths(config: ConfigFields) -> tuple[int, ...]:
    """Of each layer's feed-forward."""
    layers = layer_count(config)
    if isinstance(config.raw("intermediate_size"), list):
        return tuple(map(int, config.numbers("intermediate_size", layers, 1, 1 << 20)))
    return (config.integer("intermediate_size", 1, 1 << 20),) * layers


def _cutoffs(config: ConfigFields) -> tuple[float | None, ...]:
    """Deviations above its mean that a gate of normal numbers exceeds so rarely as the config says; () = no layer."""
    layers = layer_count(config)
    sparse = _SPARSE_LAYERS if layers > _SPARSE_LAYERS else 0
    shares = (_SPARSITY,) * sparse + (0.0,) * (layers - sparse)
    if config.raw("activation_sparsity_pattern") is not None:
        shares = config.numbers("activation_sparsity_pattern", layers, 0.0, 0.999)
    return tuple(NormalDist().inv_cdf(share) if share else None for share in shares) if any(shares) else ()


def _altup(config: ConfigFields) -> AltUp:
    """UnsupportedModel for streams that no published model has."""
    count = config.integer("altup_num_inputs", 2, _MOST_STREAMS, 4)
    if active := config.integer("altup_active_idx", 0, count - 1, 0):
        raise UnsupportedModel(f"altup_active_idx {active} is not supported (supported: 0)")
    if not config.flag("altup_correct_scale", True):
        raise UnsupportedModel("altup_correct_scale false is not supported")
    spreading, merging = (
        tuple(f"{TEXT}altup_{kind}projections.{index}" for index in range(count - 1)) for kind in ("", "unembed_")
    )
    return AltUp(count, config.integer("laurel_rank", 1, 1 << 16, 64), spreading, merging)


def _details(config: ConfigFields) -> FamilyDetails:
    attention, widths, has_bias = _attention(config), _widths(config), config.flag("attention_bias", False)
    return FamilyDetails(
        qkv_bias=has_bias,
        output_bias=has_bias,
        qk_norm=QkNorm.HEADS,
        has_value_norm=True,
        attention=attention,
        local_theta=config.number("rope_local_base_freq", 1.0, 1e12, _LOCAL_THETA),
        activation=Activation.GATED_GELU_TANH,
        multipliers=Multipliers(config.integer("hidden_size", 1, 1 << 16) ** 0.5, attention=1.0),
        logit_softcap=config.number("final_logit_softcapping", 0.0, 1e6, 30.0),
        layer_ffn=widths if len(set(widths)) > 1 else (),
        gate_cutoffs=_cutoffs(config),
        layer_inputs=read_layer_inputs(config, least=1),
        altup=_altup(config),
        names=GEMMA_NAMES,
        ignored=unread_of_shared(attention),
    )


def _nested_details(config: ConfigFields) -> FamilyDetails:
    """The same with the names of a model for text, images and sound."""
    details = _details(config)
    assert details.layer_inputs is not None and details.altup is not None
    return replace(
        details,
        names=WeightNames(**nested(details.names, NESTED)),
        layer_inputs=LayerInputs(**nested(details.layer_inputs, NESTED)),
        altup=AltUp(**nested(details.altup, NESTED)),
        ignored=(*(NESTED + name.removeprefix(TEXT) for name in details.ignored), *OTHER_SENSES),
    )


GEMMA3N = Family(
    "gemma3n",
    "Gemma3nForCausalLM",
    _details,
    default_head_dim=256,
    default_theta=1_000_000.0,
    is_tied=True,
    read_ffn=lambda config: max(_widths(config)),
)
GEMMA3N_NESTED = replace(
    GEMMA3N,
    architecture="Gemma3nForConditionalGeneration",
    read_details=_nested_details,
    text_group="text_config",
)
