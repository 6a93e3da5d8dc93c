"""Encoders: which folders hold one, the table of families, and sentence-transformers' files."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec

from engine.bundle.encoder import SCORE_HEAD
from engine.bundle.model_spec import LayerAttention, RotationKind
from engine.bundle.specs import EncoderSpec, PoolingKind
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields, architectures_of, config_of
from engine.models.encoder_families import ENCODER_FAMILIES, EncoderConfig
from engine.models.family import network_of
from engine.models.layer_kinds import MAX_WINDOW, sliding_layers
from engine.models.network import (
    Activation,
    EncoderDetails,
    Family,
    FamilyDetails,
    Network,
    NormKind,
    WeightNames,
    attention_biases,
)
from engine.models.post_norm_families import GEMMA3


def _as_seen(window: int) -> int:
    """Of a window that reaches half of its size to either side: rows that a row sees, its own among them; 0 = all."""
    return 2 * (window // 2) + 1 if window else 0


def _gemma_details(config: ConfigFields) -> FamilyDetails:
    if not config.flag("use_bidirectional_attention", False):
        raise UnsupportedModel("Gemma3TextModel is supported with use_bidirectional_attention only (EmbeddingGemma)")
    details = GEMMA3.read_details(config)
    attention = (LayerAttention(_as_seen(each.window), each.rotation) for each in details.attention)
    return replace(details, attention=tuple(attention), sees_both_ways=True)


EMBEDDING_GEMMA = replace(GEMMA3, name="embedding_gemma", architecture="Gemma3TextModel", read_details=_gemma_details)
# ModernBERT: layer norms without bias, before each half of a layer; the first layer has that of the embedding instead.
_LAYER = "model.layers.{layer}"
_NAMES = WeightNames(
    embedding="model.embeddings.tok_embeddings",
    embedding_norm="model.embeddings.norm",
    attention_norm=f"{_LAYER}.attn_norm",
    qkv=(f"{_LAYER}.attn.Wqkv",),
    output=f"{_LAYER}.attn.Wo",
    ffn_norm=f"{_LAYER}.mlp_norm",
    gate_up=(f"{_LAYER}.mlp.Wi",),
    down=f"{_LAYER}.mlp.Wo",
    final_norm="model.final_norm",
)
_GLOBAL_THETA, _LOCAL_THETA = 160_000.0, 10_000.0


def _modern_bert_details(config: ConfigFields) -> FamilyDetails:
    if config.flag("norm_bias", False):
        raise UnsupportedModel("norm_bias is not supported for modernbert")
    every = config.integer("global_attn_every_n_layers", 1, 1024, 3)
    window = _as_seen(config.integer("local_attention", 1, MAX_WINDOW, 128))
    kinds = (LayerAttention(), LayerAttention(min(window, 1 << 24), RotationKind.LOCAL))
    return replace(
        attention_biases(config),
        ffn_bias=config.flag("mlp_bias", False),
        norm=NormKind.LAYER,
        activation=Activation.GATED_GELU,
        attention=tuple(kinds[is_local] for is_local in sliding_layers(config, lambda layer: bool(layer % every))),
        full_theta=config.number("global_rope_theta", 1.0, 1e12, _GLOBAL_THETA),
        local_theta=config.number("local_rope_theta", 1.0, 1e12, _LOCAL_THETA),
        names=_NAMES,
        sees_both_ways=True,
    )


MODERN_BERT = Family("modernbert", "ModernBertModel", _modern_bert_details, default_epsilon=1e-5, is_tied=True)
TWO_WAY = {family.architecture: family for family in (EMBEDDING_GEMMA, MODERN_BERT)}


def is_encoder_folder(folder: Path) -> bool:
    """False for what is no folder of a checkpoint."""
    return architecture_of(config_of(folder)) is not None


def architecture_of(config: Mapping[str, object]) -> str | None:
    """The first listed architecture that is an encoder's."""
    return next((name for name in architectures_of(config) if name in ENCODER_FAMILIES or name in TWO_WAY), None)


UNUSED = ("pooler.", "embeddings.position_ids", "cls.")  # of training, or derived


def read_encoder(values: Mapping[str, object], has_tensor: Callable[[str], bool], longest: int) -> Network:
    """A checkpoint's config.json as a Network. has_tensor: whether there is one of that name. longest: most tokens of a
    text, 0 = as it says. UnsupportedModel for what is not implemented, CompileError for a damaged config."""
    architecture = architecture_of(values)
    assert architecture is not None, "asked of a checkpoint that is no encoder"
    config = ConfigFields(values)
    if config.raw("quantization_config") is not None:
        raise UnsupportedModel("a checkpoint that is quantised already (quantization_config) is not supported")
    if architecture in TWO_WAY:
        network = network_of(values, TWO_WAY[architecture], longest)
        return replace(network, encoder=EncoderDetails(EncoderSpec(token_types=1)))
    family = ENCODER_FAMILIES[architecture]
    found = family.read(config)
    prefix = family.prefix if has_tensor(f"{family.prefix}{family.names.embedding}.weight") else ""
    details = FamilyDetails(
        norm=NormKind.LAYER,
        qkv_bias=found.has_biases,
        output_bias=found.has_biases,
        ffn_bias=found.has_biases,
        names=_prefixed(family.names, prefix),
        ignored=UNUSED + tuple(f"{prefix}{name}" for name in UNUSED),
    )
    modules, listed = family.modules, values.get("id2label")
    # Without labels in its config, transformers gives a head two.
    labels = len(listed) if isinstance(listed, dict) and listed else 2
    if modules.score_head is not None and labels != 1:
        raise UnsupportedModel(f"a head of {labels} labels is not supported: a score is one number")
    encoder = replace(
        modules,
        spec=EncoderSpec(found.token_types, found.position_offset, SCORE_HEAD if modules.score_head else ""),
        activation=found.activation,
        embedding_norm=prefix + modules.embedding_norm,
        token_types=prefix + modules.token_types,
        positions=prefix + modules.positions if modules.positions is not None else None,
        table_rows=found.table_rows,
    )
    context = min(found.max_position, longest or found.max_position)
    spec = msgspec.structs.replace(found.spec, family=family.name, parameters=_parameters(found))
    return Network(spec, details, found.epsilon, found.max_position, context, encoder)


def _parameters(found: EncoderConfig) -> int:
    spec, gates = found.spec, found.activation.matrices
    hidden, ffn = spec.hidden, spec.ffn
    attention = 4 * hidden * hidden + found.has_biases * 4 * hidden
    forward = (gates + 1) * hidden * ffn + found.has_biases * (gates * ffn + hidden)
    tables = (spec.vocab + found.token_types + found.table_rows) * hidden
    return spec.layers * (attention + forward + 4 * hidden) + tables + 2 * hidden


def _prefixed(names: WeightNames, prefix: str) -> WeightNames:
    found: dict[str, Any] = {}
    for item in fields(names):
        value = getattr(names, item.name)
        whole = value and prefix + value if isinstance(value, str) else tuple(prefix + name for name in value)
        found[item.name] = whole  # "" stays: the family has no such module
    return WeightNames(**found)


MODE_PREFIX = "pooling_mode_"
_MODES = {
    f"{MODE_PREFIX}mean_tokens": PoolingKind.MEAN,
    f"{MODE_PREFIX}cls_token": PoolingKind.CLS,
    f"{MODE_PREFIX}lasttoken": PoolingKind.LAST,
}
_MODE_NAMES = {"mean": PoolingKind.MEAN, "cls": PoolingKind.CLS, "lasttoken": PoolingKind.LAST}


def read_pooling(config: ConfigFields) -> PoolingKind:
    """Of the pooling module's config. UnsupportedModel for other ways, and for several at once."""
    if not config.flag("include_prompt", True):
        raise UnsupportedModel("pooling that leaves out the rows of the prompt (include_prompt) is not supported")
    named = config.raw("pooling_mode")
    if named is not None:
        if not isinstance(named, str) or named not in _MODE_NAMES:
            raise UnsupportedModel(f"pooling {brief(named)} is not supported (supported: {', '.join(_MODE_NAMES)})")
        return _MODE_NAMES[named]
    chosen = [key for key in config.names() if key.startswith(MODE_PREFIX) and config.flag(key, False)]
    if len(chosen) != 1 or chosen[0] not in _MODES:
        found = ", ".join(map(brief, chosen)) or "none"
        raise UnsupportedModel(f"pooling must be one of {', '.join(_MODES)}, it is {found}")
    return _MODES[chosen[0]]


def read_prompts(config: ConfigFields) -> tuple[dict[str, str], str]:
    """Prompts by name, and the name of the one that texts get when none is asked for."""
    group = config.group("prompts")
    prompts = {name: group.text(name, "") for name in group.names()} if group is not None else {}
    default = config.text("default_prompt_name", "")
    if default and default not in prompts:
        raise CompileError(f"config_sentence_transformers.json: {brief(default)} is none of its prompts")
    return prompts, default


def read_length(config: ConfigFields) -> int:
    """The longest text in tokens, specials included, 0 = not said."""
    if config.flag("do_lower_case", False):
        raise UnsupportedModel("do_lower_case is not supported: the tokenizer itself must write in lower case")
    return config.integer("max_seq_length", 0, 1 << 24, 0)
