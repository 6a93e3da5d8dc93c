"""The table of encoder families, and the step from config.json and its companions to a `Network`."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import msgspec

from engine.bundle.encoder import SCORE_HEAD
from engine.bundle.encoder_spec import EncoderSpec
from engine.bundle.manifest import ModelSpec
from engine.errors import CompileError, UnsupportedModel
from engine.models.config_fields import ConfigFields
from engine.models.encoder_details import Activation, EncoderDetails
from engine.models.encoders.bert import (
    BERT,
    BERT_SCORES,
    ROBERTA,
    ROBERTA_SCORES,
    XLM_ROBERTA,
    XLM_ROBERTA_SCORES,
)
from engine.models.encoders.encoder_family import NO_ROTATION, EncoderConfig, EncoderFamily
from engine.models.encoders.nomic_bert import NOMIC_BERT
from engine.models.encoders.recognition import architecture_of
from engine.models.network import FamilyDetails, Network, WeightNames

_ALL = (BERT, BERT_SCORES, ROBERTA, ROBERTA_SCORES, XLM_ROBERTA, XLM_ROBERTA_SCORES, NOMIC_BERT)
ENCODER_FAMILIES = {family.architecture: family for family in _ALL}
UNUSED = ("pooler.", "embeddings.position_ids", "cls.")  # of training, or derived


def read_encoder(values: Mapping[str, object], has_tensor: Callable[[str], bool], longest: int) -> Network:
    """A checkpoint's config.json as a Network.

    has_tensor: whether the checkpoint has a tensor of that name. longest: most tokens of a text, 0 = as it says.
    Raises UnsupportedModel by name for what is not implemented, CompileError for a damaged config.
    """
    architecture = architecture_of(values)
    assert architecture is not None, "asked of a checkpoint that is no encoder"
    family, config = ENCODER_FAMILIES[architecture], ConfigFields(values)
    if config.raw("quantization_config") is not None:
        raise UnsupportedModel("a checkpoint that is quantised already (quantization_config) is not supported")
    found = family.read(config)
    if found.hidden % found.heads or found.hidden // found.heads < 2:
        raise CompileError(f"config.json: {found.hidden} hidden numbers cannot be shared by {found.heads} heads")
    prefix = family.prefix if has_tensor(f"{family.prefix}{family.names.embedding}.weight") else ""
    details = FamilyDetails(
        qkv_bias=found.qkv_bias,
        output_bias=found.output_bias,
        ffn_bias=found.ffn_bias,
        names=_prefixed(family.names, prefix),
        ignored=UNUSED + tuple(f"{prefix}{name}" for name in UNUSED),
    )
    if family.score_head is not None:
        _check_one_score(values)
    encoder = _encoder_details(family, found, prefix)
    context = min(found.max_position, longest or found.max_position)
    spec = _with_parameters(_geometry(family, found), found)
    return Network(spec, details, found.epsilon, found.max_position, context, encoder)


def _encoder_details(family: EncoderFamily, found: EncoderConfig, prefix: str) -> EncoderDetails:
    spec = EncoderSpec(found.token_types, found.position_offset, SCORE_HEAD if family.score_head else "")
    return EncoderDetails(
        spec=spec,
        activation=found.activation,
        embedding_norm=prefix + family.embedding_norm,
        token_types=prefix + family.token_types,
        positions=prefix + family.positions if family.positions is not None else None,
        table_rows=found.table_rows,
        score_head=family.score_head,
        prompts=family.prompts,
    )


def _check_one_score(values: Mapping[str, object]) -> None:
    """Without labels in its config, transformers gives a head two."""
    listed = values.get("id2label")
    labels = len(listed) if isinstance(listed, dict) and listed else 2
    if labels != 1:
        raise UnsupportedModel(f"a head of {labels} labels is not supported: a score is one number")


def _geometry(family: EncoderFamily, found: EncoderConfig) -> ModelSpec:
    return ModelSpec(
        family=family.name,
        layers=found.layers,
        hidden=found.hidden,
        heads=found.heads,
        kv_heads=found.heads,
        head_dim=found.hidden // found.heads,
        ffn=found.ffn,
        vocab=found.vocab,
        rope=found.rope or NO_ROTATION,
    )


def _with_parameters(spec: ModelSpec, found: EncoderConfig) -> ModelSpec:
    """Fill in the number of parameters, from the geometry; a score head not counted."""
    hidden, ffn = found.hidden, found.ffn
    gates = 2 if found.activation is Activation.GATED_SILU else 1
    attention = 4 * hidden * hidden + hidden * (3 * found.qkv_bias + found.output_bias)
    forward = (gates + 1) * hidden * ffn + found.ffn_bias * (gates * ffn + hidden)
    tables = (found.vocab + found.token_types + found.table_rows) * hidden
    total = found.layers * (attention + forward + 4 * hidden) + tables + 2 * hidden
    return msgspec.structs.replace(spec, parameters=total)


def _prefixed(names: WeightNames, prefix: str) -> WeightNames:
    found: dict[str, Any] = {}
    for item in fields(names):
        value = getattr(names, item.name)
        found[item.name] = tuple(prefix + name for name in value) if isinstance(value, tuple) else prefix + value
    return WeightNames(**found)
