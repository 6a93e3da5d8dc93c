"""Qwen2.5-VL, Qwen3-VL and Qwen3.5: images in their own proportions, whose tokens turn by time, row and column.
Definitions: transformers `Qwen2_5_VLForConditionalGeneration`, `Qwen3VLForConditionalGeneration`,
`Qwen2VLImageProcessor`."""

from dataclasses import replace

import msgspec

from engine.bundle.vision import Cutting, NativeSpec, VisionSpec
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields
from engine.models.dense_families import QWEN2, QWEN3
from engine.models.network import Activation, Family
from engine.models.recurrent_families import NESTED
from engine.models.rotary import DEFAULT_THETA
from engine.models.vision_network import (
    CLIP_MEAN,
    CLIP_STD,
    VISION_FILE,
    NativeNetwork,
    VisionFiles,
    activation,
    colours,
    native_of,
    resampling,
    token,
)

PAD = "<|image_pad|>"
BUCKETS = (64, 128, 256, 384, 512, 768, 1024)  # cells of a run; the last is the most tokens of an image
MOST_PIXELS = 1 << 32
BICUBIC = 3


def read_qwen2_5_vl(files: VisionFiles) -> NativeNetwork:
    """Windows in most layers, no learned positions."""
    encoder = files.fields()[1]
    if encoder.text("hidden_act", "silu") != "silu":
        raise UnsupportedModel("vision_config: hidden_act must be silu")
    network = _network(files, "visual.", Activation.GATED_SILU)
    native = native_of(network.spec)
    window = encoder.integer("window_size", native.cell, 1 << 16, 112) // native.cell
    if any(bucket % window**2 for bucket in BUCKETS):
        raise UnsupportedModel(f"vision_config: windows of {window} x {window} tokens are not supported")
    layers = _layers(encoder, "fullatt_block_indexes", network.layers)
    spec = msgspec.structs.replace(network.spec, native=msgspec.structs.replace(native, window=window))
    return replace(network, spec=spec, seeing_all=frozenset(layers))


def read_qwen3_vl(files: VisionFiles) -> NativeNetwork:
    """Learned positions, interpolated; but for Qwen3.5 rows of some layers for the first of the text (DeepStack)."""
    encoder = files.fields()[1]
    network = _network(files, "model.visual.", activation(encoder))
    places = encoder.integer("num_position_embeddings", 1, 1 << 20, 2304)
    side = int(places**0.5)
    if side * side != places:
        raise UnsupportedModel(f"vision_config: num_position_embeddings is {places}, which is no square")
    is_deep = encoder.raw("deepstack_visual_indexes") is not None
    deep = _layers(encoder, "deepstack_visual_indexes", network.layers) if is_deep else ()
    spec = msgspec.structs.replace(network.spec, deepstack=len(deep))
    return replace(network, spec=spec, table_side=side, deep=deep)


def _network(files: VisionFiles, root: str, activation: Activation) -> NativeNetwork:
    _, encoder, processor = files.fields()
    patch, merge = encoder.integer("patch_size", 1, 256, 14), encoder.integer("spatial_merge_size", 1, 16, 2)
    frames = encoder.integer("temporal_patch_size", 1, 16, 2)
    for name, own in (("patch_size", patch), ("merge_size", merge), ("temporal_patch_size", frames)):
        if processor.integer(name, 1, 1 << 10, own) != own:
            raise UnsupportedModel(f"preprocessor_config.json: {name} is not that of vision_config, {own}")
    if encoder.integer("in_channels", 1, 64, encoder.integer("in_chans", 1, 64, 3)) != 3:
        raise UnsupportedModel("vision_config: only images of three colours are supported")
    least, most = _bounds(processor, patch * merge)
    rope = encoder.group("rope_parameters") or ConfigFields({})
    network = NativeNetwork(
        spec=VisionSpec(
            file=VISION_FILE,
            cutting=Cutting.NATIVE,
            side=0,
            tokens=0,
            token=token(files, PAD),
            placeholder=PAD,
            pad=PAD,
            resampling=resampling(processor, BICUBIC),
            native=NativeSpec(patch, merge, least, most, BUCKETS),
        ),
        root=root,
        hidden=encoder.integer("hidden_size", 1, 1 << 16),
        layers=encoder.integer("depth", 1, 1024),
        heads=encoder.integer("num_heads", 1, 1024, 16),
        ffn=encoder.integer("intermediate_size", 1, 1 << 20),
        theta=rope.number("rope_theta", 1.0, 1e12, DEFAULT_THETA),
        activation=activation,
        mean=colours(processor, "image_mean", default=CLIP_MEAN),
        std=colours(processor, "image_std", 1e-6, CLIP_STD),
        frames=frames,
    )
    if network.hidden % (4 * network.heads):
        raise CompileError(
            f"config.json: vision_config has {network.heads} heads of {network.hidden}: four must divide a head"
        )
    return network


def _bounds(processor: ConfigFields, cell: int) -> tuple[int, int]:
    size = processor.group("size") or ConfigFields({})
    least = size.integer("shortest_edge", 1, MOST_PIXELS, (2 * cell) ** 2)
    most = size.integer("longest_edge", 1, MOST_PIXELS, 1280 * cell**2)
    least = processor.integer("min_pixels", 1, MOST_PIXELS, least)
    most = processor.integer("max_pixels", 1, MOST_PIXELS, most)
    if least > most:
        raise CompileError(f"preprocessor_config.json: min_pixels ({least}) is more than max_pixels ({most})")
    return least, most


def _layers(encoder: ConfigFields, name: str, count: int) -> tuple[int, ...]:
    listed = encoder.raw(name)
    if not isinstance(listed, list) or any(type(each) is not int or not 0 <= each < count for each in listed):
        raise CompileError(f"config.json: vision_config: {name} must list layers below {count}, it is {brief(listed)}")
    return tuple(listed)


QWEN2_5_VL = Family(
    "qwen2_5_vl",
    "Qwen2_5_VLForConditionalGeneration",
    QWEN2.read_details,
    text_group="text_config",
    default_theta=1e6,
    default_epsilon=1e-5,
    sections=(16, 24, 24),
)
QWEN3_VL = Family(
    "qwen3_vl",
    "Qwen3VLForConditionalGeneration",
    QWEN3.read_details,
    text_group="text_config",
    text_root=NESTED,
    default_head_dim=QWEN3.default_head_dim,
    default_theta=5e5,
    sections=(24, 20, 20),
    is_woven=True,
)
