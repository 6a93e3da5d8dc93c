"""What the config.json of BERT, RoBERTa, XLM-RoBERTa and NomicBERT says of an encoder."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from engine.bundle.model_spec import ModelSpec, RopeSpec
from engine.bundle.specs import EncoderSpec
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields
from engine.models.network import Activation, EncoderDetails, ScoreHeadNames, WeightNames
from engine.models.rotary import RopeReading, read_rope

NO_ROTATION = RopeSpec("none", 1.0, 2, (0.0,))  # the smallest that a manifest can say; no graph reads it
OPEN = EncoderSpec(token_types=1)  # until the config is read


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """One config, read. has_biases: of every matrix. max_position: most tokens of one text. table_rows: 0 = rotary."""

    spec: ModelSpec
    token_types: int
    max_position: int
    epsilon: float
    activation: Activation
    has_biases: bool
    table_rows: int = 0
    position_offset: int = 0


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """One architecture."""

    name: str
    architecture: str
    prefix: str  # of its modules' names inside the checkpoint; where none begins so, they have none
    read: Callable[[ConfigFields], EncoderConfig]
    names: WeightNames
    modules: EncoderDetails  # beside `names`, what the config says left open; a score head lies outside the prefix


# BERT and what is saved as it (MiniLM, BGE, E5, GTE); RoBERTa's kind counts positions from the padding token's on.
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
    found = _usual(config, 30522, 512, _ACTIVATIONS[activation], has_biases=True)
    return replace(found, table_rows=found.max_position)


def _usual(config: ConfigFields, vocab: int, longest: int, activation: Activation, has_biases: bool) -> EncoderConfig:
    """In the words of transformers. vocab, longest: where the config does not say."""
    return EncoderConfig(
        _geometry(
            hidden=config.integer("hidden_size", 1, 1 << 16, 768),
            layers=config.integer("num_hidden_layers", 1, 1024, 12),
            heads=config.integer("num_attention_heads", 1, 1024, 12),
            ffn=config.integer("intermediate_size", 1, 1 << 20, 3072),
            vocab=config.integer("vocab_size", 1, 1 << 22, vocab),
        ),
        token_types=config.integer("type_vocab_size", 1, 1024, 2),
        max_position=config.integer("max_position_embeddings", 1, 1 << 20, longest),
        epsilon=config.number("layer_norm_eps", 1e-14, 1.0, 1e-12),
        activation=activation,
        has_biases=has_biases,
    )


def _geometry(hidden: int, layers: int, heads: int, ffn: int, vocab: int, rope: RopeSpec = NO_ROTATION) -> ModelSpec:
    if hidden % heads or hidden // heads < 2:
        raise CompileError(f"config.json: {hidden} hidden numbers cannot be shared by {heads} heads")
    return ModelSpec("", layers, hidden, heads, heads, hidden // heads, ffn, vocab, rope)


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
    modules=EncoderDetails(
        OPEN,
        embedding_norm="embeddings.LayerNorm",
        token_types="embeddings.token_type_embeddings",
        positions="embeddings.position_embeddings",
    ),
)
BERT_SCORES = replace(
    BERT,
    architecture="BertForSequenceClassification",
    modules=replace(BERT.modules, score_head=ScoreHeadNames("bert.pooler.dense", "classifier")),
)
ROBERTA = replace(BERT, name="roberta", architecture="RobertaModel", prefix="roberta.", read=_read_roberta)
ROBERTA_SCORES = replace(
    ROBERTA,
    architecture="RobertaForSequenceClassification",
    modules=replace(ROBERTA.modules, score_head=ScoreHeadNames("classifier.dense", "classifier.out_proj")),
)
XLM_ROBERTA = replace(ROBERTA, name="xlm_roberta", architecture="XLMRobertaModel")
XLM_ROBERTA_SCORES = replace(ROBERTA_SCORES, name="xlm_roberta", architecture="XLMRobertaForSequenceClassification")
# Nomic-Embed: rotary positions, gated feed-forward, no biases beside those of the norms; tasks told by a prefix.
THETA, MAX_TRAINED = 1000.0, 2048
_NOMIC_BERT_LAYER = "encoder.layers.{layer}"
_NOMIC_BERT_NAMES = WeightNames(
    embedding="embeddings.word_embeddings",
    qkv=(f"{_NOMIC_BERT_LAYER}.attn.Wqkv",),
    output=f"{_NOMIC_BERT_LAYER}.attn.out_proj",
    attention_norm=f"{_NOMIC_BERT_LAYER}.norm1",
    gate_up=(f"{_NOMIC_BERT_LAYER}.mlp.fc12", f"{_NOMIC_BERT_LAYER}.mlp.fc11"),
    down=f"{_NOMIC_BERT_LAYER}.mlp.fc2",
    ffn_norm=f"{_NOMIC_BERT_LAYER}.norm2",
)
# What the first release's config may say otherwise, and the one value that is implemented.
_FIXED: dict[str, object] = {
    "prenorm": False,
    "use_rms_norm": False,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "parallel_block": False,
}


def _read_nomic(config: ConfigFields) -> EncoderConfig:
    if config.has("n_embd"):
        return _read_first_release(config)
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(f"activation {brief(activation)} is not supported (supported: silu)")
    found = _usual(config, 30528, MAX_TRAINED, Activation.GATED_SILU, has_biases=False)
    usual, longest = found.spec.head_dim, found.max_position
    if config.integer("head_dim", 2, 1024, usual) != usual:
        raise UnsupportedModel("config.json: head_dim must be hidden_size / num_attention_heads")
    rope = read_rope(_with_theta(config, THETA), RopeReading(usual, longest, longest))
    return replace(found, spec=msgspec.structs.replace(found.spec, rope=rope))


def _read_first_release(config: ConfigFields) -> EncoderConfig:
    """Positions behind those that were trained would need other frequencies, so texts end before them."""
    for key, only in _FIXED.items():
        if (value := config.raw(key)) not in (None, only):
            raise UnsupportedModel(f"config.json: {key} {brief(value)} is not supported (supported: {only})")
    activation = config.text("activation_function", "swiglu")
    if activation != "swiglu":
        raise UnsupportedModel(f"activation {brief(activation)} is not supported (supported: swiglu)")
    if config.number("rotary_emb_fraction", 0.0, 1.0, 1.0) != 1.0:
        raise UnsupportedModel("config.json: rotary_emb_fraction must be 1.0: whole heads turn")
    hidden, heads = config.integer("n_embd", 1, 1 << 16), config.integer("n_head", 1, 1024)
    trained = config.integer("max_trained_positions", 1, 1 << 20, MAX_TRAINED)
    longest = min(config.integer("n_positions", 1, 1 << 20, trained), trained)
    theta = config.number("rotary_emb_base", 1.0, 1e12, THETA)
    return EncoderConfig(
        _geometry(
            hidden,
            layers=config.integer("n_layer", 1, 1024),
            heads=heads,
            ffn=config.integer("n_inner", 1, 1 << 20, 4 * hidden),
            vocab=config.integer("vocab_size", 1, 1 << 22),
            rope=read_rope(_with_theta(config, theta), RopeReading(max(hidden // heads, 1), longest, longest)),
        ),
        token_types=config.integer("type_vocab_size", 1, 1024, 2),
        max_position=longest,
        epsilon=config.number("layer_norm_epsilon", 1e-14, 1.0, 1e-12),
        activation=Activation.GATED_SILU,
        has_biases=False,
    )


def _with_theta(config: ConfigFields, theta: float) -> ConfigFields:
    """What the rotation is read from. theta: where the parameters say none."""
    return ConfigFields({"rope_theta": theta, "rope_parameters": config.raw("rope_parameters") or None})


NOMIC_BERT = EncoderFamily(
    name="nomic_bert",
    architecture="NomicBertModel",
    prefix="nomic_bert.",
    read=_read_nomic,
    names=_NOMIC_BERT_NAMES,
    modules=EncoderDetails(
        OPEN,
        embedding_norm="emb_ln",
        token_types="embeddings.token_type_embeddings",
        prompts=(
            ("query", "search_query: "),
            ("document", "search_document: "),
            ("classification", "classification: "),
            ("clustering", "clustering: "),
        ),
    ),
)

_ALL = (BERT, BERT_SCORES, ROBERTA, ROBERTA_SCORES, XLM_ROBERTA, XLM_ROBERTA_SCORES, NOMIC_BERT)
ENCODER_FAMILIES = {family.architecture: family for family in _ALL}
