"""The exam of the embedded model that reads images, as it is served."""

import httpx

from tests.live import serving
from tools.demo_vision.exam import KINDS, MODEL, examine

LEAST, LEAST_OF_A_KIND = 0.9, 0.8


def test_nine_of_ten_answers_about_unseen_scenes_are_right() -> None:
    with serving("demo-vision") as server:
        (model,) = httpx.get(f"{server.url}/v1/models").json()["data"]
        shares = examine(server.url, 50 * len(KINDS))
    assert model["id"] == MODEL and "vision" in model["meta"]["capabilities"]
    assert sum(shares.values()) / len(shares) >= LEAST, shares
    assert min(shares.values()) >= LEAST_OF_A_KIND, shares
