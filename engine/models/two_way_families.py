"""Families of vectors whose layers are a decoder's and see both ways: EmbeddingGemma and ModernBERT."""

from dataclasses import replace

from engine.bundle.model_spec import LayerAttention, RotationKind
from engine.errors import UnsupportedModel
from engine.models.config_fields import ConfigFields
from engine.models.layer_kinds import MAX_WINDOW, sliding_layers
from engine.models.network import Activation, Family, FamilyDetails, NormKind, WeightNames
from engine.models.post_norm_families import GEMMA3


def _as_seen(window: int) -> int:
    """Of a window that reaches half of its size to either side: rows that a row sees, its own among them."""
    return 2 * (window // 2) + 1


def _embedding_gemma_details(config: ConfigFields) -> FamilyDetails:
    if not config.flag("use_bidirectional_attention", False):
        raise UnsupportedModel("Gemma3TextModel is supported with use_bidirectional_attention only (EmbeddingGemma)")
    details = GEMMA3.read_details(config)
    attention = tuple(
        LayerAttention(_as_seen(each.window), each.rotation) if each.window else each for each in details.attention
    )
    return replace(details, attention=attention, sees_both_ways=True)


EMBEDDING_GEMMA = replace(
    GEMMA3, name="embedding_gemma", architecture="Gemma3TextModel", read_details=_embedding_gemma_details
)
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
    every, has_bias = config.integer("global_attn_every_n_layers", 1, 1024, 3), config.flag("attention_bias", False)
    window = _as_seen(config.integer("local_attention", 1, MAX_WINDOW, 128))
    kinds = (LayerAttention(), LayerAttention(min(window, 1 << 24), RotationKind.LOCAL))
    return FamilyDetails(
        qkv_bias=has_bias,
        output_bias=has_bias,
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
