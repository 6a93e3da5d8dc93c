"""What config.json says of a Whisper: sizes of its encoder and decoder, names of its modules."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.bundle.model_spec import ModelSpec
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields, architectures_of, config_of
from engine.models.encoder_families import NO_ROTATION
from engine.models.network import FamilyDetails, Network, WeightNames

ARCHITECTURE = "WhisperForConditionalGeneration"
EMBEDDING = "model.decoder.embed_tokens"
EPSILON = 1e-5  # of every norm; no config says it
CONVOLUTION_STRIDE = 2  # frames for each position of the encoder
MOST_LAYERS = 1024


@dataclass(frozen=True, slots=True)
class SpeechNetwork:
    """decoder: with what both halves share (hidden size, heads). frames: of a window, two for each position."""

    decoder: Network
    mels: int
    positions: int
    encoder_layers: int
    encoder_heads: int
    encoder_ffn: int

    @property
    def frames(self) -> int:
        return CONVOLUTION_STRIDE * self.positions


def is_speech_config(values: Mapping[str, object]) -> bool:
    """Whether a config.json is a Whisper's."""
    return ARCHITECTURE in architectures_of(values)


def is_speech_folder(folder: Path) -> bool:
    """Whether the config.json of a folder is a Whisper's."""
    return is_speech_config(config_of(folder))


def read_speech(values: Mapping[str, object]) -> SpeechNetwork:
    """A config.json as a network. UnsupportedModel for what is not implemented, CompileError for a damaged config."""
    config = ConfigFields(values)
    if (activation := config.text("activation_function", "gelu")) != "gelu":
        raise UnsupportedModel(f"activation {brief(activation)} is not supported (supported: gelu)")
    if config.flag("scale_embedding", False):
        raise UnsupportedModel("config.json: scale_embedding must be false")
    hidden = config.integer("d_model", 2, 1 << 16)
    heads = config.integer("decoder_attention_heads", 1, 1024)
    encoder_heads = config.integer("encoder_attention_heads", 1, 1024)
    if hidden % heads or hidden % encoder_heads:
        raise CompileError(f"config.json: {hidden} hidden numbers cannot be shared by {heads} or {encoder_heads} heads")
    places = config.integer("max_target_positions", 8, 1 << 16, 448)
    spec = ModelSpec(
        family="whisper",
        layers=config.integer("decoder_layers", 1, MOST_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=config.integer("decoder_ffn_dim", 1, 1 << 20),
        vocab=config.integer("vocab_size", 8, 1 << 22),
        rope=NO_ROTATION,
        tied_head=True,
    )
    return SpeechNetwork(
        decoder=Network(spec, FamilyDetails(names=WeightNames(embedding=EMBEDDING)), EPSILON, places, places),
        mels=config.integer("num_mel_bins", 1, 1024, 80),
        positions=config.integer("max_source_positions", 1, 1 << 15, 1500),
        encoder_layers=config.integer("encoder_layers", 1, MOST_LAYERS),
        encoder_heads=encoder_heads,
        encoder_ffn=config.integer("encoder_ffn_dim", 1, 1 << 20),
    )
