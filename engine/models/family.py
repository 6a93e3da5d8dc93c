"""The table of families, and the step from config.json to a `Network`."""

from collections.abc import Mapping

import msgspec

from engine.bundle.manifest import ModelSpec
from engine.errors import CompileError, UnsupportedModel
from engine.files.content import brief
from engine.models.config_fields import ConfigFields
from engine.models.llama import LLAMA
from engine.models.mistral import MISTRAL
from engine.models.network import Family, FamilyDetails, Network
from engine.models.phi3 import PHI3
from engine.models.qwen2 import QWEN2
from engine.models.qwen3 import QWEN3
from engine.models.qwen3_5 import QWEN3_5, QWEN3_5_NESTED
from engine.models.rotary import MAX_POSITIONS, read_rope
from engine.models.sdar import SDAR

_ALL = (LLAMA, MISTRAL, QWEN2, QWEN3, PHI3, QWEN3_5, QWEN3_5_NESTED, SDAR)
FAMILIES = {family.architecture: family for family in _ALL}

_ACTIVATIONS = ("silu", "swish")  # two names of one function
_FULL_ATTENTION = ("full_attention", "sliding_attention")  # the second is checked as a window


def read_network(values: Mapping[str, object], max_context: int = 0) -> Network:
    """A checkpoint's config.json as a Network.

    max_context: most tokens one sequence may have in the bundle, 0 = what the checkpoint was made for.
    Raises UnsupportedModel by name for what is not implemented, CompileError for a damaged config.
    """
    config = ConfigFields(values)
    family = _family_of(config)
    config = _text_config(values, family)
    _refuse_unsupported(config, family)
    max_position = config.integer("max_position_embeddings", 1, MAX_POSITIONS)
    compiled_context = min(max_context, max_position) if max_context else max_position
    details = family.read_details(config)
    if details.sliding_window is not None and details.sliding_window < compiled_context:
        raise UnsupportedModel(
            f"a sliding window of {details.sliding_window} tokens is active in a context of {compiled_context}; "
            f"compile with a context of at most {details.sliding_window}"
        )
    spec = _geometry(config, family, max_position, compiled_context)
    if family.read_recurrent is not None:
        recurrent = family.read_recurrent(config, spec.layers)
        spec = msgspec.structs.replace(spec, recurrent=recurrent, has_output_gate=details.has_output_gate)
    epsilon = config.number("rms_norm_eps", 1e-12, 1.0, 1e-6)
    return Network(_with_parameters(spec, details), details, epsilon, max_position, compiled_context)


def _family_of(config: ConfigFields) -> Family:
    listed = config.raw("architectures")
    names = listed if isinstance(listed, list) else []
    for name in names:
        if isinstance(name, str) and name in FAMILIES:
            return FAMILIES[name]
        with_head = f"{name.removesuffix('Model')}ForCausalLM" if isinstance(name, str) else ""
        if with_head in FAMILIES:
            return FAMILIES[with_head]
    found = ", ".join(map(brief, names[:4])) or f"model_type {brief(config.raw('model_type'))}"
    raise UnsupportedModel(f"architecture {found} is not supported (supported: {', '.join(FAMILIES)})")


def _text_config(values: Mapping[str, object], family: Family) -> ConfigFields:
    """The config of the text model; what a nested one does not say is as around it."""
    nested = values.get(family.text_group) if family.text_group else None
    if not isinstance(nested, Mapping):
        return ConfigFields(values)
    outer = {key: values[key] for key in ("tie_word_embeddings", "quantization_config") if key in values}
    return ConfigFields(outer | {key: value for key, value in nested.items() if value is not None})


def _refuse_unsupported(config: ConfigFields, family: Family) -> None:
    activation = config.text("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise UnsupportedModel(f"activation {brief(activation)} is not supported (supported: silu)")
    if config.raw("quantization_config") is not None:
        raise UnsupportedModel("a checkpoint that is quantised already (quantization_config) is not supported")
    layer_types = None if family.read_recurrent is not None else config.raw("layer_types")
    for kind in layer_types if isinstance(layer_types, list) else []:
        if kind not in _FULL_ATTENTION:
            raise UnsupportedModel(f"layer type {brief(kind)} is not supported")


def _geometry(config: ConfigFields, family: Family, max_position: int, compiled_context: int) -> ModelSpec:
    hidden = config.integer("hidden_size", 1, 1 << 16)
    heads = config.integer("num_attention_heads", 1, 1024)
    kv_heads = config.integer("num_key_value_heads", 1, heads, heads)
    if heads % kv_heads:
        raise CompileError(
            f"config.json: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
        )
    head_dim = config.integer("head_dim", 2, 1024, family.default_head_dim or max(hidden // heads, 1))
    has_partial, share = family.has_partial_rotary, family.default_rotary_share
    return ModelSpec(
        family=family.name,
        layers=config.integer("num_hidden_layers", 1, 1024),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=config.integer("intermediate_size", 1, 1 << 20),
        vocab=config.integer("vocab_size", 1, 1 << 22),
        rope=read_rope(config, head_dim, max_position, compiled_context, has_partial, share),
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _with_parameters(spec: ModelSpec, details: FamilyDetails) -> ModelSpec:
    """Fill in the number of parameters, from the geometry (a tied head counts once)."""
    query, key = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    projections = (query * (1 + spec.has_output_gate) + 2 * key) * (spec.hidden + details.qkv_bias)
    attention = projections + query * spec.hidden + spec.hidden * details.output_bias
    attention += 2 * spec.head_dim * details.has_qk_norm
    layer = 3 * spec.hidden * spec.ffn + 2 * spec.hidden + (2 * spec.ffn + spec.hidden) * details.ffn_bias
    total = spec.layers * layer + len(spec.attention_layers) * attention + _recurrent_parameters(spec)
    tables = spec.vocab * spec.hidden * (1 if spec.tied_head else 2)
    return msgspec.structs.replace(spec, parameters=total + tables + spec.hidden)


def _recurrent_parameters(spec: ModelSpec) -> int:
    """Of the layers without keys and values, feed-forward and norms around them not counted."""
    recurrent = spec.recurrent
    if recurrent is None:
        return 0
    outputs = recurrent.channels + recurrent.value_width + 2 * recurrent.value_heads
    layer = spec.hidden * (outputs + recurrent.value_width) + recurrent.channels * recurrent.kernel
    return len(recurrent.layers) * (layer + 2 * recurrent.value_heads + recurrent.value_dim)
