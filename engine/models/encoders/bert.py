"""BERT and what is saved as it (MiniLM, BGE, E5, GTE); RoBERTa's kind counts positions from the padding token's on."""

from dataclasses import replace

from engine.errors import UnsupportedModel
from engine.files.content import brief
from engine.models.config_fields import ConfigFields
from engine.models.encoder_details import Activation, ScoreHeadNames
from engine.models.encoders.encoder_family import EncoderConfig, EncoderFamily
from engine.models.network import WeightNames

_LAYER = "encoder.layer.{layer}"
_NAMES = WeightNames(
    embedding="embeddings.word_embeddings",
    qkv=tuple(f"{_LAYER}.attention.self.{name}" for name in ("query", "key", "value")),
    output=f"{_LAYER}.attention.output.dense",
    attention_norm=f"{_LAYER}.attention.output.LayerNorm",
    gate_up=(f"{_LAYER}.intermediate.dense",),
    down=f"{_LAYER}.output.dense",
    ffn_norm=f"{_LAYER}.output.LayerNorm",
)
_ACTIVATIONS = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
}


def _read(config: ConfigFields) -> EncoderConfig:
    kind = config.text("position_embedding_type", "absolute")
    if kind != "absolute":
        raise UnsupportedModel(f"position_embedding_type {brief(kind)} is not supported (supported: absolute)")
    if config.flag("is_decoder", False) or config.flag("add_cross_attention", False):
        raise UnsupportedModel("an encoder whose config says is_decoder or add_cross_attention is not supported")
    activation = config.text("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        supported = ", ".join(_ACTIVATIONS)
        raise UnsupportedModel(f"activation {brief(activation)} is not supported (supported: {supported})")
    rows = config.integer("max_position_embeddings", 1, 1 << 20, 512)
    return EncoderConfig(
        hidden=config.integer("hidden_size", 1, 1 << 16, 768),
        layers=config.integer("num_hidden_layers", 1, 1024, 12),
        heads=config.integer("num_attention_heads", 1, 1024, 12),
        ffn=config.integer("intermediate_size", 1, 1 << 20, 3072),
        vocab=config.integer("vocab_size", 1, 1 << 22, 30522),
        token_types=config.integer("type_vocab_size", 1, 1024, 2),
        max_position=rows,
        epsilon=config.number("layer_norm_eps", 1e-14, 1.0, 1e-12),
        activation=_ACTIVATIONS[activation],
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
        table_rows=rows,
    )


def _read_roberta(config: ConfigFields) -> EncoderConfig:
    """The rows of the table up to the padding token's belong to no token."""
    found = _read(config)
    offset = config.integer("pad_token_id", 0, 1023, 1) + 1
    if found.max_position <= offset:
        raise UnsupportedModel(f"max_position_embeddings {found.max_position} leaves no position behind the padding")
    return replace(found, max_position=found.max_position - offset, position_offset=offset)


BERT = EncoderFamily(
    name="bert",
    architecture="BertModel",
    prefix="bert.",
    read=_read,
    names=_NAMES,
    embedding_norm="embeddings.LayerNorm",
    token_types="embeddings.token_type_embeddings",
    positions="embeddings.position_embeddings",
)
BERT_SCORES = replace(
    BERT,
    architecture="BertForSequenceClassification",
    score_head=ScoreHeadNames("bert.pooler.dense", "classifier"),
)
ROBERTA = replace(BERT, name="roberta", architecture="RobertaModel", prefix="roberta.", read=_read_roberta)
ROBERTA_SCORES = replace(
    ROBERTA,
    architecture="RobertaForSequenceClassification",
    score_head=ScoreHeadNames("classifier.dense", "classifier.out_proj"),
)
XLM_ROBERTA = replace(ROBERTA, name="xlm_roberta", architecture="XLMRobertaModel")
XLM_ROBERTA_SCORES = replace(ROBERTA_SCORES, name="xlm_roberta", architecture="XLMRobertaForSequenceClassification")
