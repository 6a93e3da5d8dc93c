"""The text of images against transformers' processor, and which tokens are whose rows."""

import pytest

from engine.errors import InvalidRequest
from engine.vision.pictures import tiles_of
from engine.vision.placing import placed_prompt, placed_text
from engine.vision.question import ImageTiles, Picture
from tests.engine.vision.judges import picture, saved, smolvlm_text
from tests.vision_facts import GEMMA, INTERN, QWEN
from tests.vision_facts import IDEFICS as GRID

ONE = ImageTiles(tiles=(b"a" * 3072,))


def test_text_is_that_of_the_processor() -> None:
    rendered = "User:<image>what is<image>and this?<|im_end|>\nAssistant:"
    images = [picture(100, 60, 1), picture(32, 32, 2)]
    tiles = [tiles_of(Picture(saved(image)), GRID) for image in images]
    assert placed_text(rendered, GRID, tiles) == smolvlm_text(rendered, images)


@pytest.mark.parametrize("rendered", ["none", "<image><image>"])
def test_a_template_that_leaves_images_out_is_told_of(rendered: str) -> None:
    with pytest.raises(InvalidRequest, match="has a place for"):
        placed_text(rendered, GRID, [ONE])


def test_neighbouring_tiles_follow_each_other() -> None:
    pad = GRID.token
    two = ImageTiles(tiles=(b"a", b"b"))
    prompt = placed_prompt((1, *[pad] * 8, 2, *[pad] * 4), GRID, [two, ONE])
    assert [(image.first, image.tokens) for image in prompt.images] == [(1, 4), (5, 4), (10, 4)]
    assert len({image.digest for image in prompt.images}) == 3
    with pytest.raises(InvalidRequest, match="places for"):
        placed_prompt((1, *[pad] * 3, 2, pad), GRID, [ONE])


def test_an_image_of_its_own_proportions_has_a_token_for_each_cell() -> None:
    wide, high = (ImageTiles(*grid, tiles=(b"pixels",)) for grid in ((2, 3), (3, 2)))
    text = placed_text(f"a{QWEN.placeholder}b{QWEN.placeholder}", QWEN, [wide, high])
    assert text == f"a{QWEN.pad * 6}b{QWEN.pad * 6}"
    pads = [QWEN.token] * 6
    prompt = placed_prompt((1, *pads, *pads, 2), QWEN, [wide, high])
    assert [(image.first, image.tokens, image.grid) for image in prompt.images] == [(1, 6, (2, 3)), (7, 6, (3, 2))]
    assert len({image.digest for image in prompt.images}) == 2
    for ids in ((1, *pads, *pads[1:], 2), (1, *pads, *pads, 2, QWEN.token), (1, *pads, *pads[1:], 2, QWEN.token)):
        with pytest.raises(InvalidRequest, match="places for"):
            placed_prompt(ids, QWEN, [wide, high])


def test_an_image_that_sees_itself_both_ways_says_so() -> None:
    """As `Gemma3Processor` writes it."""
    text = placed_text("a<start_of_image>b", GEMMA, [ONE])
    assert text == f"a\n\n<start_of_image>{GEMMA.pad * 16}<end_of_image>\n\nb"
    (image,) = placed_prompt((1, *[GEMMA.token] * 16, 2), GEMMA, [ONE]).images
    assert (image.first, image.tokens, image.both_ways) == (1, 16, True)


def test_tiles_of_a_canvas_stand_together() -> None:
    """As `InternVLProcessor.replace_image_token` writes them."""
    two = ImageTiles(1, 2, (b"a", b"b", b"c"))
    assert placed_text("a<IMG_CONTEXT>\n<IMG_CONTEXT>", INTERN, [two, ONE]) == (
        f"a<img>{INTERN.pad * 12}</img>\n<img>{INTERN.pad * 4}</img>"
    )
