"""What Gemma 3 says of its images: sizes, tokens, and what is refused by name."""

from typing import Any

import pytest

from engine.errors import CompileError, UnsupportedModel
from engine.models.vision import read_gemma3
from engine.models.vision_network import TileForm, VisionFiles

# As google/gemma-3-4b-it has it.
ENCODER: dict[str, Any] = {
    "hidden_size": 1152,
    "image_size": 896,
    "intermediate_size": 4304,
    "model_type": "siglip_vision_model",
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "vision_use_head": False,
}
PROCESSOR: dict[str, Any] = {
    "do_pan_and_scan": None,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    "size": {"height": 896, "width": 896},
}
IDS = {"<image_soft_token>": 262_144, "<pad>": 0}


def files(
    processor: dict[str, Any] | None = None, ids: dict[str, int] | None = None, tokens: int = 256, **encoder: Any
) -> VisionFiles:
    """Those of the model, with changes."""
    config = {"mm_tokens_per_image": tokens, "vision_config": ENCODER | encoder}
    return VisionFiles(config, PROCESSOR | (processor or {}), (IDS if ids is None else ids).get)


def test_an_image_is_one_tile_of_256_rows() -> None:
    network = read_gemma3(files())
    spec = network.spec
    assert (spec.side, spec.tokens, spec.token, spec.both_ways) == (896, 256, 262_144, True)
    assert (network.grid, network.shuffle, network.form) == (64, 4, TileForm.POOLED)


def test_files_of_the_text_model_may_lack_the_token_of_an_image() -> None:
    assert read_gemma3(files(ids={"<pad>": 0})).spec.pad == "<pad>"
    with pytest.raises(CompileError, match="the tokenizer has no token <pad>"):
        read_gemma3(files(ids={}))


@pytest.mark.parametrize("tokens", [255, 100, 65 * 65])
def test_tokens_that_are_no_squares_of_patches(tokens: int) -> None:
    with pytest.raises(CompileError, match=f"mm_tokens_per_image is {tokens}"):
        read_gemma3(files(tokens=tokens))


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        ({"do_pan_and_scan": True}, "do_pan_and_scan is not supported"),
        ({"size": {"height": 896, "width": 448}}, "size is not the image_size"),
    ],
)
def test_other_ways_to_prepare_an_image_are_refused(processor: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_gemma3(files(processor))
