"""The images of Gemma 3: SigLIP over one square tile, means of squares of patches, a norm and one matrix.

Definitions: transformers `Gemma3ForConditionalGeneration`, `Gemma3Processor`, `Gemma3ImageProcessor`.
"""

from math import isqrt

from engine.bundle.vision import Cutting, VisionSpec
from engine.errors import CompileError, UnsupportedModel
from engine.models.config_fields import ConfigFields
from engine.models.vision_network import (
    VISION_FILE,
    TileForm,
    VisionFiles,
    VisionNetwork,
    activation,
    check_square,
    colours,
    resampling,
    token,
    with_tokens,
)

PAD, UNUSED = "<image_soft_token>", "<pad>"
BILINEAR = 2


def read_gemma3(files: VisionFiles) -> VisionNetwork:
    """An image is one tile, whatever its shape: without pan and scan, which transformers leaves out by default, too."""
    config, encoder, processor = files.fields()
    side = encoder.integer("image_size", 1, 4096, 224)
    patch = encoder.integer("patch_size", 1, side, 16)
    if processor.raw("do_pan_and_scan") not in (None, False):
        raise UnsupportedModel("preprocessor_config.json: do_pan_and_scan is not supported")
    check_square(processor, side)
    # Files of the text model alone may lack the token, whose own row nothing reads.
    pad = PAD if files.token_id(PAD) is not None else UNUSED
    network = VisionNetwork(
        spec=VisionSpec(
            file=VISION_FILE,
            cutting=Cutting.WHOLE,
            side=side,
            tokens=1,
            token=token(files, pad),
            placeholder="<start_of_image>",
            pad=pad,
            resampling=resampling(processor, BILINEAR),
            opening="\n\n<start_of_image>",
            closing="<end_of_image>\n\n",
            both_ways=True,
        ),
        root="vision_tower.vision_model.",
        newer_root="vision_tower.",
        connector="multi_modal_projector.mm_",
        patch=patch,
        hidden=encoder.integer("hidden_size", 1, 1 << 16, 768),
        layers=encoder.integer("num_hidden_layers", 1, 1024, 12),
        heads=encoder.integer("num_attention_heads", 1, 1024, 12),
        ffn=encoder.integer("intermediate_size", 1, 1 << 20, 3072),
        epsilon=encoder.number("layer_norm_eps", 1e-12, 1.0, 1e-6),
        activation=activation(encoder),
        shuffle=_pooled(config, side // patch),
        mean=colours(processor, "image_mean"),
        std=colours(processor, "image_std", 1e-6),
        form=TileForm.POOLED,
    )
    return with_tokens(network)


def _pooled(config: ConfigFields, grid: int) -> int:
    """Patches of a side that become one row, of `grid` patches of a tile's side."""
    tokens = config.integer("mm_tokens_per_image", 1, 1 << 16, 256)
    rows = isqrt(tokens)
    if rows * rows != tokens or rows > grid or grid % rows:
        raise CompileError(
            f"config.json: mm_tokens_per_image is {tokens}, which makes no whole squares of {grid} x {grid} patches"
        )
    return grid // rows
