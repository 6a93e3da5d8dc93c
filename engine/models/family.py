"""Model families: what each reads of its config.json, and the table of them."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import msgspec

from engine.bundle.model_spec import PLAIN_ATTENTION, ModelSpec, RotationKind
from engine.bundle.specs import RecurrentKind
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields, architectures_of
from engine.models.dense_families import DENSE
from engine.models.expert_families import GPT_OSS, WITH_EXPERTS, WITH_LATENTS
from engine.models.gemma4 import GEMMA3N, GEMMA3N_NESTED, GEMMA4, GEMMA4_NESTED
from engine.models.layer_kinds import sliding_layers
from engine.models.mamba2 import FALCON_H1, GRANITE4, NEMOTRON_H
from engine.models.network import TEXT_ROOT, Activation, Family, FamilyDetails, Network, QkNorm
from engine.models.post_norm_families import POST_NORM, TEXT_MODELS
from engine.models.recurrent_families import LFM2, QWEN3_5, QWEN3_5_NESTED
from engine.models.rotary import FULL, MAX_POSITIONS, SLIDING, RopeReading, read_rope
from engine.models.vision import VISION, deepstack_layers, reads_images


def parameters_of(network: Network) -> int:
    """Of all tensors; a tied head counts once."""
    spec, details, names = network.spec, network.details, network.details.names
    norms = (names.attention_norm, names.attention_post_norm, names.ffn_post_norm)
    total = spec.layers * (sum(map(bool, norms)) * spec.hidden + bool(names.layer_scale))
    total += sum(bool(network.ffn_norm(layer)) for layer in range(spec.layers)) * spec.hidden
    total += sum(_of_attention(network, layer) for layer in spec.attention_layers)
    total += _of_recurrence(spec, details) + _of_experts(spec, details)
    total += _of_layer_inputs(network) + _of_streams(network)
    dense = (network.ffn_of(layer) for layer in range(spec.layers) if layer not in network.expert_layers)
    matrices = details.activation.matrices
    total += sum((matrices + 1) * spec.hidden * n + (matrices * n + spec.hidden) * details.ffn_bias for n in dense)
    return total + spec.vocab * spec.hidden * (1 if spec.tied_head else 2) + spec.hidden


def _of_attention(network: Network, layer: int) -> int:
    spec, details, heads = network.spec, network.details, network.heads_of(layer)
    total = sum(network.qkv_outputs(layer)) * (spec.hidden + details.qkv_bias)
    total += network.attended_width(layer) * spec.hidden + spec.hidden * details.output_bias
    total += spec.heads * spec.has_sinks
    if (latent := details.latent) is not None:
        total += latent.query_rank * (1 + heads.query_width)
        return total + latent.kv_rank * (1 + spec.heads * (latent.kept + latent.value_dim))
    has_keys = spec.owner_of(layer) == layer
    if details.qk_norm is QkNorm.ALL:
        return total + heads.query_width + heads.key_width * has_keys
    return total + (1 + has_keys) * heads.head_dim * details.has_qk_norm


def _of_layer_inputs(network: Network) -> int:
    spec, inputs = network.spec, network.details.layer_inputs
    if inputs is None:
        return 0
    width = spec.layers * inputs.size
    return width * (inputs.vocab + spec.hidden) + inputs.size + 2 * width * spec.hidden + spec.layers * spec.hidden


def _of_streams(network: Network) -> int:
    """What makes several streams of one and one of several, and how each layer mixes them."""
    hidden, altup = network.spec.hidden, network.details.altup
    if altup is None:
        return 0
    count = altup.count
    layer = (count + 3 + 2 * altup.rank) * hidden + count**3 + count**2
    return 2 * (count - 1) * hidden**2 + network.spec.layers * layer


def _of_experts(spec: ModelSpec, details: FamilyDetails) -> int:
    """Of the layers with experts, norms not counted but for those of experts beside a feed-forward."""
    experts = spec.experts
    if experts is None or details.experts is None:
        return 0
    names, biases = details.experts.names, any(form.biases for form in details.experts.names.forms)
    matrices = details.activation.matrices
    one = (matrices + 1) * spec.hidden * experts.ffn + (matrices * experts.ffn + spec.hidden) * biases
    router = experts.count * (spec.hidden + details.experts.has_router_bias + bool(names.choice_bias))
    shared = (matrices + 1) * spec.hidden * experts.shared + spec.hidden * bool(names.shared_gate)
    layer = experts.count * one + router + shared
    beside = 4 * spec.hidden + experts.count if details.experts.beside else 0
    return len(experts.layers) * (layer + beside)


def _of_recurrence(spec: ModelSpec, details: FamilyDetails) -> int:
    """Of the layers without keys and values, feed-forward and norms around them not counted."""
    recurrent = spec.recurrent
    if recurrent is None:
        return 0
    layer = spec.hidden * (recurrent.inputs + recurrent.value_width) + recurrent.channels * recurrent.kernel
    if recurrent.kind is RecurrentKind.MAMBA2:
        layer += recurrent.channels + 3 * recurrent.value_heads
        layer += recurrent.value_width * bool(details.recurrent_names.norm)
    elif recurrent.has_memory:
        layer += 2 * recurrent.value_heads * (spec.hidden + 1) + recurrent.value_dim
    return len(recurrent.layers) * layer


# The table of families, and the step from config.json to a Network.

_OTHERS = (
    *(QWEN3_5, QWEN3_5_NESTED, LFM2, GPT_OSS, GEMMA3N, GEMMA3N_NESTED, GEMMA4, GEMMA4_NESTED),
    *(GRANITE4, FALCON_H1, NEMOTRON_H),
)
_ALL = (*DENSE, *POST_NORM, *WITH_EXPERTS, *_OTHERS, *WITH_LATENTS, *TEXT_MODELS, *VISION)
FAMILIES = {family.architecture: family for family in _ALL}

_ACTIVATIONS = {
    Activation.GATED_SILU: ("silu", "swish"),
    Activation.GATED_GELU: ("gelu",),
    Activation.GATED_GELU_TANH: ("gelu_pytorch_tanh", "gelu_new"),
    Activation.SQUARED_RELU: ("relu2",),
}


def read_network(values: Mapping[str, object], max_context: int = 0) -> Network:
    """A checkpoint's config.json as a Network. max_context: most tokens of a sequence in the bundle, 0 = as the
    checkpoint was made for. UnsupportedModel for what is not implemented, CompileError for a damaged config."""
    return network_of(values, _family_of(ConfigFields(values)), max_context)


def network_of(values: Mapping[str, object], family: Family, max_context: int = 0) -> Network:
    """As `read_network`, of a family that is known."""
    sees, deep = reads_images(values), deepstack_layers(values)
    if not sees:
        family = replace(family, sections=())  # of text all positions are alike
    config = _text_config(values if family.translated is None else family.translated(values), family)
    max_position = config.integer("max_position_embeddings", 1, MAX_POSITIONS)
    compiled_context = min(max_context, max_position) if max_context else max_position
    details = details_within(family, family.read_details(config))
    _refuse_unsupported(config, family, details)
    spec = _with_layers(_geometry(config, family, details, max_position, compiled_context), details, compiled_context)
    if details.local_theta:
        rope = RopeReading(spec.head_dim, max_position, compiled_context, theta=details.local_theta, kind=SLIDING)
        spec = msgspec.structs.replace(spec, local_rope=read_rope(config, rope))
    recurrent = family.read_recurrent(config, spec.layers) if family.read_recurrent is not None else None
    if recurrent is not None and (fault := recurrent.fault(spec.layers)):
        raise UnsupportedModel(f"config.json: {fault}")
    spec = msgspec.structs.replace(
        spec,
        recurrent=recurrent,
        has_output_gate=details.has_output_gate,
        has_sinks=bool(details.names.sinks),
        experts=details.experts.spec if details.experts else None,
        layer_inputs=details.layer_inputs.size if details.layer_inputs else 0,
        streams=details.altup.count if details.altup else 1,
    )
    epsilon = config.number("rms_norm_eps", 1e-12, 1.0, config.number("norm_eps", 1e-12, 1.0, family.default_epsilon))
    if spec.rope.gain and details.latent is not None:
        raise UnsupportedModel("llama_4_scaling_beta is not supported for latent attention")
    if deep >= spec.layers:
        raise UnsupportedModel(f"config.json: {deep} layers of DeepStack are not below {spec.layers} of the text")
    may_be_untied = spec.tied_head and values.get("tie_word_embeddings") is False
    own = Network(spec, details, epsilon, max_position, compiled_context)
    return _counted(replace(own, reads_images=sees, deepstack=deep, may_be_untied=may_be_untied))


def untied(network: Network) -> Network:
    """The same with a head of its own."""
    spec = msgspec.structs.replace(network.spec, tied_head=False)
    return _counted(replace(network, spec=spec, may_be_untied=False))


def _counted(network: Network) -> Network:
    return replace(network, spec=msgspec.structs.replace(network.spec, parameters=parameters_of(network)))


def _family_of(config: ConfigFields) -> Family:
    names = architectures_of(config.values)
    for name in names:
        for known in (name, f"{name.removesuffix('Model')}ForCausalLM"):
            if known in FAMILIES:
                return FAMILIES[known]
    found = ", ".join(map(brief, names[:4])) or f"model_type {brief(config.raw('model_type'))}"
    raise UnsupportedModel(f"architecture {found} is not supported (supported: {', '.join(FAMILIES)})")


def _text_config(values: Mapping[str, object], family: Family) -> ConfigFields:
    """The config of the text model; what a nested one does not say is as around it."""
    nested = values.get(family.text_group) if family.text_group else None
    if not isinstance(nested, Mapping):
        return ConfigFields(values)
    found = {**family.text_defaults, **nested}
    tied = values.get("tie_word_embeddings")
    # Newer files say so around the text model, whose own word is then the default of its class.
    return ConfigFields(
        found | ({"tie_word_embeddings": tied} if tied or found.get("tie_word_embeddings") is None else {})
    )


def _refuse_unsupported(config: ConfigFields, family: Family, details: FamilyDetails) -> None:
    known = _ACTIVATIONS[details.activation]
    key = "hidden_activation" if config.raw("hidden_activation") is not None else "hidden_act"
    activation = config.text(key, known[0])
    if activation not in known:
        raise UnsupportedModel(f"activation {brief(activation)} is not supported (supported: {known[0]})")
    # "vision": of images alone, which a model that reads text has none of.
    is_text = config.raw("use_bidirectional_attention") in (None, False, "vision")
    if not is_text and not details.sees_both_ways:
        raise UnsupportedModel("use_bidirectional_attention is not supported")
    if family.read_recurrent is None and any(sliding_layers(config, lambda _: False)) and not details.attention:
        raise UnsupportedModel(f"layer type {SLIDING!r} is not supported for {family.name}")


def _with_layers(spec: ModelSpec, details: FamilyDetails, context: int) -> ModelSpec:
    """The layers' attention; a window that hides nothing in so many tokens is none."""

    def kept(window: int) -> int:
        reach = window // 2 + 1 if details.sees_both_ways else window
        return window if reach < context else 0

    layers = tuple(msgspec.structs.replace(each, window=kept(each.window)) for each in details.attention)
    return spec if all(each == PLAIN_ATTENTION for each in layers) else msgspec.structs.replace(spec, attention=layers)


def details_within(family: Family, details: FamilyDetails) -> FamilyDetails:
    """The same with the names that a text model has within a larger one."""
    if family.text_root == TEXT_ROOT:
        return details
    found: FamilyDetails = _renamed(details, family.text_root)
    own, is_beside = found.names, family.text_root.endswith(f".{TEXT_ROOT}")
    head = family.text_root.removesuffix(TEXT_ROOT) + own.head if is_beside else own.head
    return replace(found, names=replace(own, head=head), ignored=(*found.ignored, *family.ignored))


def _renamed(value: Any, root: str) -> Any:
    if isinstance(value, str):
        return root + value.removeprefix(TEXT_ROOT) if value.startswith(TEXT_ROOT) else value
    if isinstance(value, tuple):
        return tuple(_renamed(item, root) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(value, **{item.name: _renamed(getattr(value, item.name), root) for item in fields(value)})


def _geometry(
    config: ConfigFields, family: Family, details: FamilyDetails, max_position: int, compiled_context: int
) -> ModelSpec:
    hidden = config.integer("hidden_size", 1, 1 << 16)
    heads = config.integer("num_attention_heads", 1, 1024)
    kv_heads = config.integer("num_key_value_heads", 1, heads, heads)
    if heads % kv_heads:
        raise CompileError(
            f"config.json: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
        )
    latent = details.latent
    if latent is None:
        head_dim = config.integer("head_dim", 2, 1024, family.default_head_dim or max(hidden // heads, 1))
    else:
        head_dim, kv_heads = latent.head_dim, heads
    turned = (each.head_dim for each in details.attention if each.rotation is RotationKind.MODEL and each.head_dim)
    rope = RopeReading(
        latent.turned if latent else next(turned, head_dim),
        max_position,
        compiled_context,
        has_partial=family.has_partial_rotary,
        share=family.default_rotary_share,
        theta=details.full_theta or family.default_theta,
        is_interleaved=config.flag("rope_interleave", True) if latent else family.is_interleaved,
        kind=FULL if details.local_theta else "",
        sections=family.sections,
        is_woven=family.is_woven,
    )
    return ModelSpec(
        family=family.name,
        layers=config.integer("num_hidden_layers", 1, 1024),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=family.read_ffn(config)
        if family.read_ffn
        else config.integer("intermediate_size", 1, 1 << 20, details.experts.spec.ffn if details.experts else None),
        vocab=config.integer("vocab_size", 1, 1 << 22),
        rope=read_rope(config, rope),
        tied_head=config.flag("tie_word_embeddings", family.is_tied),
    )
