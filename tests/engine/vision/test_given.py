"""Images as clients give them: how large, how many, and in which words what is wrong is told."""

import base64
from dataclasses import replace

import pytest

from engine.errors import InvalidRequest
from engine.vision.given import MOST_IMAGES, GivenImage, images_of
from engine.vision.question import LIMITS

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
