"""What transformers makes of a chat with images, greedily: the judge of prompts, rows and tokens."""

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from engine.bundle.manifest import load_manifest
from engine.bundle.vision import VisionSpec
from engine.request import PromptImage
from engine.runtime.sessions import cpu_provider
from engine.runtime.vision import VisionGraph
from engine.vision.pictures import tiles_of
from engine.vision.question import Picture
from tests.vision_facts import SIDE, TOKENS
from tests.vision_models import GEMMA_PROCESSOR, INTERN_PROCESSOR, QWEN_PROCESSOR


def picture(width: int, height: int, seed: int) -> Image.Image:
    """A smooth random image: what is resized differently looks different."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


# One of each shape: small, tall, wide, of a strange side.
SHAPES = [picture(*each) for each in ((100, 60, 1), (20, 30, 2), (64, 200, 3), (8, 300, 4), (130, 125, 5))]


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """The bytes of a file."""
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def data_url(image: Image.Image) -> str:
    """As a client sends it: PNG loses nothing."""
    return f"data:image/png;base64,{base64.b64encode(saved(image)).decode()}"


def smolvlm_processor(**changes: Any) -> Any:
    """With the facts of the tiny checkpoint."""
    facts = {
        "max_image_size": {"longest_edge": SIDE},
        "size": {"longest_edge": 4 * SIDE},
        "image_mean": [0.5, 0.4, 0.5],
        "image_std": [0.5, 0.5, 0.25],
        "do_pad": False,
        "return_row_col_info": True,
    }
    return SmolVLMImageProcessorPil(**facts | changes)


def smolvlm_text(rendered: str, images: list[Image.Image]) -> str:
    """What the processor makes of a rendered template."""
    for image in images:
        found = smolvlm_processor()([[image]])
        text = get_image_prompt_string(
            found["rows"][0][0], found["cols"][0][0], TOKENS, "<fake_token_around_image>", "<IMAGE>", "<global-img>"
        )
        rendered = rendered.replace("<image>", text, 1)
    return rendered.replace("<IMAGE>", "<image>")


def qwen_processor(**changes: Any) -> Any:
    """With the facts of the tiny checkpoint."""
    return Qwen2VLImageProcessorPil(**QWEN_PROCESSOR | changes)


def internvl_processor(**changes: Any) -> Any:
    """With the facts of the tiny checkpoint."""
    return GotOcr2ImageProcessorPil(**INTERN_PROCESSOR | {"crop_to_patches": True} | changes)


def _internvl_given(images: list[Image.Image]) -> dict[str, torch.Tensor]:
    pixels = [tile for image in images for tile in internvl_processor()([image])["pixel_values"]]
    return {"pixel_values": torch.tensor(np.stack(pixels))} if pixels else {}


def gemma3_processor() -> Any:
    """With the facts of the tiny checkpoint."""
    return Gemma3ImageProcessorPil(**GEMMA_PROCESSOR)


def _gemma3_given(images: list[Image.Image]) -> dict[str, torch.Tensor]:
    pixels = [gemma3_processor()([image])["pixel_values"][0] for image in images]
    return {"pixel_values": torch.tensor(np.stack(pixels))} if pixels else {}


def _smolvlm_given(images: list[Image.Image]) -> dict[str, torch.Tensor]:
    pixels = [tile for image in images for tile in smolvlm_processor()([[image]])["pixel_values"][0]]
    return {"pixel_values": torch.tensor(np.stack(pixels))[None]} if pixels else {}


def qwen_given(images: list[Image.Image], patch: int = 4) -> dict[str, torch.Tensor]:
    """Patches of all images, and the grid of each."""
    found = qwen_processor(patch_size=patch)(images, return_tensors="np") if images else {}
    return {name: torch.tensor(values) for name, values in found.items()}


def rows_differ(model: Any, folder: Path, spec: VisionSpec) -> float:
    """The largest difference of a number of images' rows from transformers'. spec: how they are cut."""
    manifest = load_manifest(folder)
    assert manifest.vision is not None
    graph = VisionGraph(folder, manifest, cpu_provider(1))
    if is_native(model):
        return max(_native_rows_differ(model, graph, spec, image) for image in SHAPES)
    image = SHAPES[0].resize((SIDE, SIDE))
    pixels = np.asarray(image).transpose(2, 0, 1).tobytes()
    rows = np.frombuffer(graph.rows(PromptImage(0, 4, b"", pixels)), np.float32)
    values = smolvlm_processor(do_image_splitting=False, do_resize=False)([[image]])["pixel_values"]
    shown = torch.tensor(np.asarray(values))
    with torch.no_grad():
        found = model.get_image_features(shown[0] if model.config.model_type in OF_TILES else shown)
    return _farthest(rows, found.pooler_output[0])


def _native_rows_differ(model: Any, graph: VisionGraph, spec: VisionSpec, image: Image.Image) -> float:
    """With whatever stands behind the rows for the first layers of the text."""
    tiles = tiles_of(Picture(saved(image)), spec)
    grid = (tiles.rows, tiles.columns)
    rows = np.frombuffer(graph.rows(PromptImage(0, grid[0] * grid[1], b"", tiles.tiles[0], grid=grid)), np.float32)
    with torch.no_grad():
        found = model.get_image_features(**qwen_given([image], model.config.vision_config.patch_size))
    deep = [each[0] for each in getattr(found, "deepstack_features", ())]
    return _farthest(rows, torch.cat([found.pooler_output[0], *deep], dim=-1))


def _farthest(rows: NDArray[np.float32], wanted: torch.Tensor) -> float:
    return float(np.abs(rows.reshape(wanted.shape) - wanted.numpy()).max())


def is_native(model: Any) -> bool:
    """Whether a model looks at images in their own proportions."""
    return hasattr(model.model, "visual")


OF_TILES = {"internvl": _internvl_given, "gemma3": _gemma3_given}


def greedy(model: Any, ids: list[int], images: list[Image.Image], count: int) -> list[int]:
    """The next `count` tokens."""
    asked = torch.tensor([ids])
    processed = qwen_given if is_native(model) else OF_TILES.get(model.config.model_type, _smolvlm_given)
    given = processed(images)
    kinds = {"gemma3": "token_type_ids"} | ({model.config.model_type: "mm_token_type_ids"} if is_native(model) else {})
    if model.config.model_type in kinds and images:
        given[kinds[model.config.model_type]] = (asked == model.config.image_token_id).int()
    with torch.no_grad():
        found = model.generate(
            asked,
            attention_mask=torch.ones_like(asked),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            **given,
        )
    return found[0, len(ids) :].tolist()
