"""What the bundle of a tiny model that reads images says of them."""

from engine.bundle.vision import Cutting, NativeSpec, Resampling, VisionSpec

SIDE, TOKENS, GEMMA_ROWS = 32, 4, 16
IDEFICS = VisionSpec(
    "vision.onnx",
    Cutting.GRID,
    SIDE,
    TOKENS,
    259,
    "<image>",
    "<image>",
    Resampling.LANCZOS,
    4 * SIDE,
    "<fake_token_around_image>",
    "<row_{row}_col_{column}>",
    "<global-img>",
    "\n",
    "<fake_token_around_image>",
)
INTERN = VisionSpec(
    "vision.onnx",
    Cutting.CANVAS,
    SIDE,
    TOKENS,
    259,
    "<IMG_CONTEXT>",
    "<IMG_CONTEXT>",
    opening="<img>",
    closing="</img>",
    most_tiles=6,
)
GEMMA = VisionSpec(
    "vision.onnx",
    Cutting.WHOLE,
    SIDE,
    GEMMA_ROWS,
    259,
    "<start_of_image>",
    "<image_soft_token>",
    Resampling.BILINEAR,
    opening="\n\n<start_of_image>",
    closing="<end_of_image>\n\n",
    both_ways=True,
)
QWEN_PAD = "<|image_pad|>"
QWEN_CELLS = NativeSpec(4, 2, 12 * 64, 300 * 64, (64, 128, 256, 384, 512, 768, 1024))
QWEN = VisionSpec("vision.onnx", Cutting.NATIVE, 0, 0, 261, QWEN_PAD, QWEN_PAD, native=QWEN_CELLS)
