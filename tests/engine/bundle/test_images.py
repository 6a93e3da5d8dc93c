"""A graph of images that does not fit what the manifest says of images is refused by its tensor."""

from collections.abc import Callable

import msgspec
import pytest

from engine.bundle.images import check_images
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TensorSpec, TextSpec
from engine.bundle.model_spec import ModelSpec, RopeSpec
from engine.bundle.vision import FixedSpec
from engine.errors import BundleError
from tests.vision_facts import QWEN

COLOURS = (0.5, 0.5, 0.5)
ODD = FixedSpec(20, 24, COLOURS, COLOURS)
VISION = msgspec.structs.replace(QWEN, deepstack=1, fixed=FixedSpec(16, 24, COLOURS, COLOURS, frames=2))


def tensors(**shapes: tuple[int, ...]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, "float16", shape) for name, shape in shapes.items())


TAKEN = {"pixel_values": (24, 96), "position_ids_cos": (24, 6), "position_ids_sin": (24, 6)}
GIVEN = {"image_features": (1, 6, 64), "deepstack_visual_embeds_0": (6, 64)}
TEXT = {"inputs_embeds": (1, 8, 64), "visual_pos_masks": (1, 8), "deepstack_visual_embeds_0": (8, 64)}


def manifest(
    taken: dict[str, tuple[int, ...]], given: dict[str, tuple[int, ...]], text: dict[str, tuple[int, ...]]
) -> Manifest:
    """Of a pool whose text graph takes what DeepStack adds."""
    rope = RopeSpec("default", 1e6, 32, (1.0,) * 16)
    layers = GraphSpec("ar8_cl64_1_of_1", "text.onnx", GraphKind.DEFAULT, 1, 1, tensors(**text), (), 8, 64)
    images = GraphSpec("vision", "vision.onnx", GraphKind.IMAGE_ENCODER, 1, 1, tensors(**taken), tensors(**given))
    model = ModelSpec("qwen3_vl", 2, 64, 4, 2, 32, 96, 384, rope)
    written = TextSpec("tokenizer.json", None, (2,))
    return Manifest(
        1, "tiny", "x-elite", "fp16", "none", 0, model, (layers,), "float16", 64, written, {}, {},
        vision=VISION, image_graph=images,
    )  # fmt: skip


def test_what_fits() -> None:
    check_images(manifest(TAKEN, GIVEN, TEXT))
    check_images(manifest(TAKEN | {"full_attention_mask": (1, 24, 24)}, GIVEN, TEXT))


WRONG: dict[str, tuple[Callable[[], Manifest], str]] = {
    "pixels": (
        lambda: manifest(TAKEN | {"pixel_values": (24, 48)}, GIVEN, TEXT),
        r"pixel_values is float16 \[24, 48\]",
    ),
    "rows": (lambda: manifest(TAKEN, GIVEN | {"image_features": (7, 64)}, TEXT), "image_features is float16"),
    "an unknown input": (lambda: manifest(TAKEN | {"x": (1,)}, GIVEN, TEXT), r"unknown inputs \['x'\]"),
    "no layer": (
        lambda: manifest(TAKEN, GIVEN, {"inputs_embeds": (1, 8, 64)}),
        "vision.deepstack is 1, but no graph has the input deepstack_visual_embeds_0",
    ),
    "too few places": (
        lambda: manifest(TAKEN, GIVEN, TEXT | {"deepstack_visual_embeds_0": (7, 64)}),
        "deepstack_visual_embeds_0 has room for 7 of 8 rows",
    ),
    "half a cell": (
        lambda: msgspec.structs.replace(
            manifest(TAKEN, GIVEN, TEXT), vision=msgspec.structs.replace(VISION, fixed=ODD)
        ),
        "must divide 20 x 24",
    ),
    "no graph": (
        lambda: msgspec.structs.replace(manifest(TAKEN, GIVEN, TEXT), image_graph=None),
        "vision.fixed and image_graph go together",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(BundleError, match=message):
        check_images(make())
