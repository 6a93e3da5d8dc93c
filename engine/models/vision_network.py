"""Encoders of images as the compiler writes them, and what their readers have in common."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from engine.bundle.vision import Resampling, VisionSpec
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields
from engine.models.network import Activation

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
VISION_FILE, VISION_DATA = "vision.onnx", "vision.data"
RESAMPLINGS = {
    0: Resampling.NEAREST,
    1: Resampling.LANCZOS,
    2: Resampling.BILINEAR,
    3: Resampling.BICUBIC,
}
ACTIVATIONS = {
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu": Activation.GELU,
}


class TileForm(StrEnum):
    """Encoders of tiles by what they are of."""

    SHUFFLED = "shuffled"  # Idefics3: SigLIP, then pixels shuffled into depth
    CLASS_TOKEN = "class_token"  # InternVL: a row more that sees and is seen, then the same
    POOLED = "pooled"  # Gemma 3: SigLIP, then means of squares of patches


@dataclass(frozen=True, slots=True)
class VisionNetwork:
    """An encoder of square tiles: patches, layers of attention that see a whole tile, and a connector to the text.

    root, connector: beginnings of the names of tensors; newer_root: as transformers saves them now, "" = the same.
    shuffle: patches of a side that become one row. mean, std: of colours from 0 to 1, by channel.
    """

    spec: VisionSpec
    root: str
    connector: str
    patch: int
    hidden: int
    layers: int
    heads: int
    ffn: int
    epsilon: float
    activation: Activation
    shuffle: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    form: TileForm = TileForm.SHUFFLED
    newer_root: str = ""

    @property
    def grid(self) -> int:
        return self.spec.side // self.patch


@dataclass(frozen=True, slots=True)
class NativeNetwork:
    """An encoder of images in their own proportions: patches that turn by row and column, and mergers of cells.

    root: beginning of the names of tensors. frames: of a patch, which an image fills with itself. table_side: places
    of a side of the learned positions, 0 = there are none. seeing_all: layers that see all, where others see windows.
    deep: layers whose cells are added behind the first layers of the text, in order. Its activation tells its form:
    gated ones have a feed-forward of three matrices and norms by the root of squares, others two and norms with a mean.
    """

    spec: VisionSpec
    root: str
    hidden: int
    layers: int
    heads: int
    ffn: int
    theta: float
    activation: Activation
    mean: tuple[float, ...]
    std: tuple[float, ...]
    frames: int = 2
    table_side: int = 0
    seeing_all: frozenset[int] = frozenset()
    deep: tuple[int, ...] = ()

    @property
    def is_gated(self) -> bool:
        """Which of the two forms it has."""
        return self.activation is Activation.GATED_SILU


Encoder = VisionNetwork | NativeNetwork


@dataclass(frozen=True, slots=True)
class VisionFiles:
    """What a checkpoint's folder says of images. token_id: of a token by its text, None when there is none."""

    config: Mapping[str, object]
    processor: Mapping[str, object]
    token_id: Callable[[str], int | None]

    def fields(self) -> tuple[ConfigFields, ConfigFields, ConfigFields]:
        """Of config.json, of the encoder in it, and of preprocessor_config.json."""
        config = ConfigFields(self.config)
        encoder = config.group("vision_config")
        if encoder is None:
            raise CompileError("config.json: vision_config is missing")
        return config, encoder, ConfigFields(self.processor, "preprocessor_config.json")


def with_tokens(network: VisionNetwork) -> VisionNetwork:
    """The same with as many rows of a tile as its geometry gives. CompileError when that is no whole number."""
    if network.spec.side % network.patch or network.grid % network.shuffle or network.hidden % network.heads:
        raise CompileError(
            f"config.json: vision_config has tiles of {network.spec.side} pixels in patches of {network.patch}, "
            f"{network.shuffle} to a side of a row, and {network.heads} heads of {network.hidden}: one does not divide"
        )
    rows = network.grid // network.shuffle
    return replace(network, spec=msgspec.structs.replace(network.spec, tokens=rows**2))


def token(files: VisionFiles, text: str) -> int:
    """The id of a token that has to be there."""
    found = files.token_id(text)
    if found is None:
        raise CompileError(f"the tokenizer has no token {text}, which stands for an image")
    return found


def activation(encoder: ConfigFields, default: str = "gelu_pytorch_tanh") -> Activation:
    """UnsupportedModel by name."""
    name = encoder.text("hidden_act", default)
    if name not in ACTIVATIONS:
        raise UnsupportedModel(f"vision_config: activation {brief(name)} is not supported")
    return ACTIVATIONS[name]


def resampling(processor: ConfigFields, default: int) -> Resampling:
    """By the number that Pillow gives it."""
    return RESAMPLINGS[processor.integer("resample", 0, 3, default)]


def check_square(processor: ConfigFields, side: int) -> None:
    """UnsupportedModel where pictures are not made squares of the encoder's side, in pixels."""
    size = processor.group("size")
    if size is not None and {size.integer(name, 1, 4096, side) for name in ("height", "width")} != {side}:
        raise UnsupportedModel("preprocessor_config.json: size is not the image_size of vision_config")


def colours(
    processor: ConfigFields, name: str, least: float = 0.0, default: tuple[float, ...] = (0.5, 0.5, 0.5)
) -> tuple[float, ...]:
    """Three numbers of `preprocessor_config.json`, one for each channel."""
    return default if processor.raw(name) is None else processor.numbers(name, 3, least, 1.0)
