"""Gemma 4 and 3n: last layers read the keys and values of earlier ones, and layers take inputs beside the stream. Gemma
4 has heads of two sizes, and experts beside the feed-forward in the larger ones; Gemma 3n four streams, and gates of
which the first layers keep the highest. Checkpoints for text, images and sound serve their text model."""

from dataclasses import replace
from statistics import NormalDist

from engine.bundle.model_spec import LayerAttention, RotationKind
from engine.errors import UnsupportedModel
from engine.models.config_fields import ConfigFields
from engine.models.experts import BesideNames, ExpertDetails, ExpertKeys, ExpertNames, read_experts, usual_forms
from engine.models.layer_kinds import AltUp, LayerInputs, cache_owners, declared_window, layer_count, sliding_layers
from engine.models.network import TEXT_ROOT, Activation, Family, FamilyDetails, Multipliers, QkNorm, attention_biases
from engine.models.post_norm_families import GEMMA_NAMES, read_cap
from engine.models.recurrent_families import NESTED

_NAMES = replace(GEMMA_NAMES, layer_scale="model.layers.{layer}.layer_scalar")
# Where the config does not say.
_WINDOW, _GLOBAL_HEAD_DIM, _LOCAL_THETA, _INPUTS, _INPUT_TOKENS = 512, 512, 10_000.0, 256, 262_144
OTHER_SENSES = ("model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio.")
_UNREAD = ("k_proj", "v_proj", "k_norm", "v_norm")  # that checkpoints may have of layers which share


def _attention(config: ConfigFields) -> tuple[LayerAttention, ...]:
    """Layers that see everything have heads of their own; the last ones read what the last of their kind before has."""
    window = declared_window(config, _WINDOW) or _WINDOW
    # The last layer sees everything, whatever the config says (transformers `Gemma4TextConfig`).
    sliding = (*sliding_layers(config, lambda layer: bool((layer + 1) % 6))[:-1], False)
    return tuple(
        LayerAttention(window, RotationKind.LOCAL, cache_of=owner)
        if is_sliding
        else LayerAttention(0, RotationKind.MODEL, *_global_heads(config, layer), owner)
        for layer, (is_sliding, owner) in enumerate(zip(sliding, cache_owners(config, sliding, 0), strict=True))
    )


def _global_heads(config: ConfigFields, layer: int) -> tuple[int, int]:
    """Key heads (0 = as elsewhere) and head size of a layer that sees everything, in either spelling."""
    listed = config.group("per_layer_config")
    if listed is not None:
        own = listed.group(str(layer)) or ConfigFields({})
        return own.integer("num_key_value_heads", 0, 1024, 0), own.integer("head_dim", 0, 1024, 0)
    has_heads = config.flag("attention_k_eq_v", False) and config.raw("num_global_key_value_heads") is not None
    kv_heads = config.integer("num_global_key_value_heads", 1, 1024) if has_heads else 0
    return kv_heads, config.integer("global_head_dim", 2, 1024, _GLOBAL_HEAD_DIM)


def _experts(config: ConfigFields) -> ExpertDetails | None:
    """Of each layer, beside its feed-forward; None where there are none."""
    if not config.flag("enable_moe_block", bool(config.raw("num_experts"))):
        return None
    if config.flag("use_double_wide_mlp", False):
        raise UnsupportedModel("use_double_wide_mlp is not supported beside experts")
    at, keys = "model.layers.{layer}", ExpertKeys(chosen="top_k_experts")
    names = ExpertNames(
        router=f"{at}.router.proj",
        forms=usual_forms(f"{at}.experts")[1:],
        shared_gate_up=(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"),
        shared_down=f"{at}.mlp.down_proj",
    )
    beside = BesideNames(
        norm=f"{at}.pre_feedforward_layernorm_2",
        post_norm=f"{at}.post_feedforward_layernorm_2",
        dense_post_norm=f"{at}.post_feedforward_layernorm_1",
        router_scale=f"{at}.router.scale",
        expert_scale=f"{at}.router.per_expert_scale",
    )
    width = config.integer("intermediate_size", 1, 1 << 20)
    spec = read_experts(config, keys, tuple(range(layer_count(config))), width)
    return ExpertDetails(spec, names=names, beside=beside)


def _details(config: ConfigFields) -> FamilyDetails:
    attention = _attention(config)
    shared = [each.cache_of >= 0 for each in attention]
    ffn, has_keys_alone = config.integer("intermediate_size", 1, 1 << 20), config.flag("attention_k_eq_v", False)
    is_wide = config.flag("use_double_wide_mlp", False) and any(shared)
    return replace(
        _common(config, attention, read_layer_inputs(config)),
        layers_of_keys=frozenset(
            layer for layer, each in enumerate(attention) if has_keys_alone and each.rotation is RotationKind.MODEL
        ),
        local_theta=_LOCAL_THETA,
        logit_softcap=read_cap(config, "final_logit_softcapping", 0.0),
        layer_ffn=tuple(ffn * (1 + is_shared) for is_shared in shared) if is_wide else (),
        names=_NAMES,
        experts=_experts(config),
    )


def _common(
    config: ConfigFields, attention: tuple[LayerAttention, ...], layer_inputs: LayerInputs | None
) -> FamilyDetails:
    sharing = [layer for layer, each in enumerate(attention) if each.cache_of >= 0]
    return replace(
        attention_biases(config),
        qk_norm=QkNorm.HEADS,
        has_value_norm=True,
        attention=attention,
        activation=Activation.GATED_GELU_TANH,
        multipliers=Multipliers(config.integer("hidden_size", 1, 1 << 16) ** 0.5, attention=1.0),
        layer_inputs=layer_inputs,
        names=GEMMA_NAMES,
        ignored=tuple(f"model.layers.{layer}.self_attn.{name}" for layer in sharing for name in _UNREAD),
    )


def read_layer_inputs(config: ConfigFields, least: int = 0) -> LayerInputs | None:
    """None for a size of 0. least: of the sizes that a family may have."""
    size = config.integer("hidden_size_per_layer_input", least, 1 << 16, _INPUTS)
    tokens = config.integer("vocab_size_per_layer_input", 1, 1 << 22, _INPUT_TOKENS)
    return LayerInputs(size, tokens) if size else None


GEMMA4 = Family(
    "gemma4",
    "Gemma4ForCausalLM",
    _details,
    default_head_dim=256,
    has_partial_rotary=True,
    default_theta=1_000_000.0,
    is_tied=True,
)
GEMMA4_NESTED = replace(
    GEMMA4,
    architecture="Gemma4ForConditionalGeneration",
    text_group="text_config",
    text_root=NESTED,
    ignored=OTHER_SENSES,
)


# Where the config does not say (transformers `Gemma3nTextConfig`).
_SHARED, _SPARSE_LAYERS, _SPARSITY = 15, 10, 0.95


def _n_attention(config: ConfigFields) -> tuple[LayerAttention, ...]:
    window = declared_window(config, _WINDOW) or _WINDOW
    sliding = sliding_layers(config, lambda layer: bool((layer + 1) % 5))
    kinds = (0, RotationKind.MODEL), (window, RotationKind.LOCAL)
    owners = cache_owners(config, sliding, _SHARED)
    return tuple(LayerAttention(*kinds[which], cache_of=owner) for which, owner in zip(sliding, owners, strict=True))


def _widths(config: ConfigFields) -> tuple[int, ...]:
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
    count = config.integer("altup_num_inputs", 2, 16, 4)
    if active := config.integer("altup_active_idx", 0, count - 1, 0):
        raise UnsupportedModel(f"altup_active_idx {active} is not supported (supported: 0)")
    if not config.flag("altup_correct_scale", True):
        raise UnsupportedModel("altup_correct_scale false is not supported")
    spreading, merging = (
        tuple(f"{TEXT_ROOT}altup_{kind}projections.{index}" for index in range(count - 1)) for kind in ("", "unembed_")
    )
    return AltUp(count, config.integer("laurel_rank", 1, 1 << 16, 64), spreading, merging)


def _n_details(config: ConfigFields) -> FamilyDetails:
    widths = _widths(config)
    return replace(
        _common(config, _n_attention(config), read_layer_inputs(config, least=1)),
        local_theta=config.number("rope_local_base_freq", 1.0, 1e12, _LOCAL_THETA),
        logit_softcap=read_cap(config, "final_logit_softcapping", 30.0),
        layer_ffn=widths if len(set(widths)) > 1 else (),
        gate_cutoffs=_cutoffs(config),
        altup=_altup(config),
    )


GEMMA3N = Family(
    "gemma3n",
    "Gemma3nForCausalLM",
    _n_details,
    default_head_dim=256,
    default_theta=1_000_000.0,
    is_tied=True,
    read_ffn=lambda config: max(_widths(config)),
)
GEMMA3N_NESTED = replace(
    GEMMA3N,
    architecture="Gemma3nForConditionalGeneration",
    text_group="text_config",
    text_root=NESTED,
    ignored=OTHER_SENSES,
)
