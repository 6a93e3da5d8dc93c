"""Nomic-Embed: rotary positions, gated feed-forward, no biases beside those of the norms; tasks told by a prefix.

Configs come in two spellings: transformers' own and that of the model's first release (GPT-2's names).
"""

from engine.errors import UnsupportedModel
from engine.files.content import brief
from engine.models.config_fields import ConfigFields
from engine.models.encoder_details import Activation
from engine.models.encoders.encoder_family import EncoderConfig, EncoderFamily
from engine.models.network import WeightNames
from engine.models.rotary import read_rope

THETA, MAX_TRAINED = 1000.0, 2048
_LAYER = "encoder.layers.{layer}"
_NAMES = WeightNames(
    embedding="embeddings.word_embeddings",
    qkv=(f"{_LAYER}.attn.Wqkv",),
    output=f"{_LAYER}.attn.out_proj",
    attention_norm=f"{_LAYER}.norm1",
    gate_up=(f"{_LAYER}.mlp.fc12", f"{_LAYER}.mlp.fc11"),
    down=f"{_LAYER}.mlp.fc2",
    ffn_norm=f"{_LAYER}.norm2",
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


def _read(config: ConfigFields) -> EncoderConfig:
    return _read_first_release(config) if config.raw("n_embd") is not None else _read_own(config)


def _read_own(config: ConfigFields) -> EncoderConfig:
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(f"activation {brief(activation)} is not supported (supported: silu)")
    hidden = config.integer("hidden_size", 1, 1 << 16, 768)
    heads = config.integer("num_attention_heads", 1, 1024, 12)
    longest = config.integer("max_position_embeddings", 1, 1 << 20, MAX_TRAINED)
    return EncoderConfig(
        hidden=hidden,
        layers=config.integer("num_hidden_layers", 1, 1024, 12),
        heads=heads,
        ffn=config.integer("intermediate_size", 1, 1 << 20, 3072),
        vocab=config.integer("vocab_size", 1, 1 << 22, 30528),
        token_types=config.integer("type_vocab_size", 1, 1024, 2),
        max_position=longest,
        epsilon=config.number("layer_norm_eps", 1e-14, 1.0, 1e-12),
        activation=Activation.GATED_SILU,
        qkv_bias=False,
        output_bias=False,
        ffn_bias=False,
        rope=read_rope(_with_theta(config, None), _head_dim(config, hidden, heads), longest, longest, False),
    )


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
        hidden=hidden,
        layers=config.integer("n_layer", 1, 1024),
        heads=heads,
        ffn=config.integer("n_inner", 1, 1 << 20, 4 * hidden),
        vocab=config.integer("vocab_size", 1, 1 << 22),
        token_types=config.integer("type_vocab_size", 1, 1024, 2),
        max_position=longest,
        epsilon=config.number("layer_norm_epsilon", 1e-14, 1.0, 1e-12),
        activation=Activation.GATED_SILU,
        qkv_bias=False,
        output_bias=False,
        ffn_bias=False,
        rope=read_rope(_with_theta(config, theta), max(hidden // heads, 1), longest, longest, False),
    )


def _head_dim(config: ConfigFields, hidden: int, heads: int) -> int:
    usual = max(hidden // heads, 1)
    if config.integer("head_dim", 2, 1024, usual) != usual:
        raise UnsupportedModel("config.json: head_dim must be hidden_size / num_attention_heads")
    return usual


def _with_theta(config: ConfigFields, theta: float | None) -> ConfigFields:
    """What the rotation is read from: the family's base where the config says none."""
    parameters = config.raw("rope_parameters")
    return ConfigFields({"rope_theta": theta or THETA} | ({"rope_parameters": parameters} if parameters else {}))


NOMIC_BERT = EncoderFamily(
    name="nomic_bert",
    architecture="NomicBertModel",
    prefix="nomic_bert.",
    read=_read,
    names=_NAMES,
    embedding_norm="emb_ln",
    token_types="embeddings.token_type_embeddings",
    positions=None,
    prompts=tuple(
        (task, f"{prefix}: ")
        for task, prefix in (
            ("query", "search_query"),
            ("document", "search_document"),
            ("classification", "classification"),
            ("clustering", "clustering"),
        )
    ),
)
