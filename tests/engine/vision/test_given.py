"""Images as clients give them: how large, how many, and in which words what is wrong is told."""

import base64
from dataclasses import replace

import pytest

from engine.errors import InvalidRequest
from engine.vision.given import MOST_IMAGES, GivenImage, images_of, placed_prompt, placed_text
from engine.vision.pictures import tiles_of
from engine.vision.question import LIMITS, ImageTiles, Picture
from tests.engine.vision.judges import picture, saved, smolvlm_text
from tests.vision_facts import GEMMA, INTERN, QWEN
from tests.vision_facts import IDEFICS as GRID

PARAM = "messages[0].content[1].image_url"


def given(content: bytes) -> GivenImage:
    """As a data URL."""
    return GivenImage(f"data:image/png;base64,{base64.b64encode(content).decode()}", PARAM)


@pytest.mark.parametrize("most", [3000, 3001, 3002])
@pytest.mark.parametrize("over", [1, 2, 3, 4])
def test_the_bound_of_a_data_url_is_exact(most: int, over: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the remainder of its bytes by three."""
    monkeypatch.setattr("engine.vision.given.LIMITS", replace(LIMITS, most_bytes=most))
    assert given(bytes(most)).picture().content == bytes(most)
    with pytest.raises(InvalidRequest, match=rf"image_url' is larger than {most} bytes\.") as caught:
        given(bytes(most + over)).picture()
    assert caught.value.param == PARAM


@pytest.mark.parametrize("head", ["data:IMAGE/PNG;base64,", "DATA:image/jpg;charset=utf-8;name=a.jpg;BASE64,"])
def test_data_urls_have_parameters_any_case_and_lines(head: str) -> None:
    content = bytes(range(200))
    url = head + base64.encodebytes(content).decode().replace("\n", "\r\n")
    assert GivenImage(url, PARAM).picture().content == content


def test_what_is_no_base64_is_told_of_after_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.vision.given.LIMITS", replace(LIMITS, most_bytes=9))
    for encoded, sentence in (("!" * 14, "larger than 9 bytes"), ("!" * 12, "not base64"), ("=" * 40, "not base64")):
        with pytest.raises(InvalidRequest, match=sentence):
            GivenImage(f"data:image/png;base64,{encoded}", PARAM).picture()


def test_a_request_has_so_many_images_and_no_more() -> None:
    part = {"type": "image", "url": "data:,"}
    messages = [{"role": "user", "content": [part] * (MOST_IMAGES - 1)}, {"role": "user", "content": [part]}]
    assert len(images_of(messages)) == MOST_IMAGES
    with pytest.raises(InvalidRequest, match=f"have {MOST_IMAGES + 1} images, {MOST_IMAGES} are the most"):
        images_of([*messages, messages[1]])


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
