"""Encoders of images as the compiler writes them, what their readers have in common, and images of one size."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.bundle.vision import Cutting, FixedSpec, NativeSpec, Resampling, VisionSpec
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields
from engine.models.network import Activation

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
VISION_FILE, VISION_DATA = "vision.onnx", "vision.data"
RESAMPLINGS = {0: Resampling.NEAREST, 1: Resampling.LANCZOS, 2: Resampling.BILINEAR, 3: Resampling.BICUBIC}
ACTIVATIONS = {"gelu_pytorch_tanh": Activation.GELU_TANH, "gelu": Activation.GELU}


class TileForm(StrEnum):
    """Encoders of tiles by what they are of."""

    SHUFFLED = "shuffled"  # Idefics3: SigLIP, then pixels shuffled into depth
    CLASS_TOKEN = "class_token"  # InternVL: a row more that sees and is seen, then the same
    POOLED = "pooled"  # Gemma 3: SigLIP, then means of squares of patches


@dataclass(frozen=True, slots=True)
class VisionNetwork:
    """An encoder of square tiles: patches, layers of attention that see a whole tile, and a connector to the text."""

    spec: VisionSpec
    root: str  # beginnings of the names of tensors
    connector: str  # the same
    patch: int
    hidden: int
    layers: int
    heads: int
    ffn: int
    epsilon: float
    activation: Activation
    shuffle: int  # patches of a side that become one row
    mean: tuple[float, ...]  # of colours from 0 to 1, by channel
    std: tuple[float, ...]
    form: TileForm = TileForm.SHUFFLED
    newer_root: str = ""  # as transformers saves them now, "" = the same

    @property
    def grid(self) -> int:
        return self.spec.side // self.patch


@dataclass(frozen=True, slots=True)
class NativeNetwork:
    """An encoder of images in their own proportions: patches that turn by row and column, and mergers of cells. Its
    activation tells its form: gated ones have a feed-forward of three matrices and norms by the root of squares, others
    two and norms with a mean."""

    spec: VisionSpec
    root: str  # beginning of the names of tensors
    hidden: int
    layers: int
    heads: int
    ffn: int
    theta: float
    activation: Activation
    mean: tuple[float, ...]
    std: tuple[float, ...]
    frames: int = 2  # of a patch, which an image fills with itself
    table_side: int = 0  # places of a side of the learned positions, 0 = there are none
    seeing_all: frozenset[int] = frozenset()  # layers that see all, where others see windows
    deep: tuple[int, ...] = ()  # layers whose cells are added behind the first layers of the text, in order

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
        if (encoder := config.group("vision_config")) is None:
            raise CompileError("config.json: vision_config is missing")
        return config, encoder, ConfigFields(self.processor, "preprocessor_config.json")


def with_tokens(network: VisionNetwork) -> VisionNetwork:
    """The same with as many rows of a tile as its geometry gives. CompileError when that is no whole number."""
    if network.spec.side % network.patch or network.grid % network.shuffle or network.hidden % network.heads:
        raise CompileError(
            f"config.json: vision_config has tiles of {network.spec.side} pixels in patches of {network.patch}, "
            f"{network.shuffle} to a side of a row, and {network.heads} heads of {network.hidden}: one does not divide"
        )
    return replace(network, spec=msgspec.structs.replace(network.spec, tokens=(network.grid // network.shuffle) ** 2))


def token(files: VisionFiles, text: str) -> int:
    """The id of a token that has to be there."""
    if (found := files.token_id(text)) is None:
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


MOST_CELLS = 16  # of a side: 256 rows of the text, as in GenieX bundles


def with_one_size(network: Encoder, context: int) -> Encoder:
    """The same for images of one size that take at most half of the context: fewer tiles, or a smaller square."""
    mean, std = (tuple(map(float, each)) for each in (network.mean, network.std))
    if isinstance(network, VisionNetwork):
        fixed = FixedSpec(network.spec.side, network.spec.side, mean, std)  # type: ignore[arg-type]
        return replace(network, spec=msgspec.structs.replace(_with_fewer_tiles(network.spec, context), fixed=fixed))
    native, cells = native_of(network.spec), MOST_CELLS
    while 2 * cells**2 > context and cells > 1:
        cells //= 2
    side = cells * native.cell
    native = msgspec.structs.replace(native, least_pixels=side**2, most_pixels=side**2, buckets=(cells**2,))
    fixed = FixedSpec(side, side, mean, std, network.frames, network.theta)  # type: ignore[arg-type]
    return replace(network, spec=msgspec.structs.replace(network.spec, native=native, fixed=fixed))


def _with_fewer_tiles(spec: VisionSpec, context: int) -> VisionSpec:
    """Where a tile more, the whole image, fits as well."""
    tiles = max(1, context // (2 * spec.tokens) - 1)
    if spec.cutting is Cutting.CANVAS:
        return msgspec.structs.replace(spec, most_tiles=min(spec.most_tiles, tiles))
    side = max(1, math.isqrt(tiles)) * spec.side
    return msgspec.structs.replace(spec, longest=min(spec.longest, side)) if spec.longest else spec


def native_of(spec: VisionSpec) -> NativeSpec:
    """How an image is cut into patches."""
    assert spec.native is not None
    return spec.native


def patches_of(network: NativeNetwork) -> int:
    """P of an image of one size."""
    fixed, patch = network.spec.fixed, native_of(network.spec).patch
    assert fixed is not None
    return fixed.height // patch * (fixed.width // patch)


def stretched_shares(network: NativeNetwork) -> NDArray[np.float64]:
    """What each place of the square table of positions counts for in each patch [P, places], cell by cell. The table is
    stretched over the image: linear between its places by row and column (transformers
    `Qwen3VLVisionModel.fast_pos_embed_interpolate`)."""
    fixed, native, side = network.spec.fixed, native_of(network.spec), network.table_side
    assert fixed is not None
    counts = fixed.height // native.patch, fixed.width // native.patch
    rows, columns = (
        np.maximum(1 - np.abs(np.linspace(0, side - 1, count)[:, None] - np.arange(side)), 0) for count in counts
    )
    shares = rows[:, None, :, None] * columns[None, :, None, :]
    merge = native.merge
    apart = shares.reshape(counts[0] // merge, merge, counts[1] // merge, merge, side * side)
    return np.asarray(apart.transpose(0, 2, 1, 3, 4).reshape(-1, side * side))
