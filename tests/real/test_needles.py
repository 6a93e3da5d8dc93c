"""Facts hidden in longer texts than windows reach, found by a published model."""

from pathlib import Path

import httpx

from tests.live import serving
from tools.needles import BEGINNING, continuing, needles

DEPTHS, TOKENS = (0.0, 0.6), 3200


def test_behind_six_windows(gemma: Path, tmp_path: Path) -> None:
    """Of 512 tokens, which most layers of Gemma 3 270M see; it was not taught to chat."""
    with (
        serving(str(gemma), "--max-context", str(TOKENS), cache=tmp_path) as server,
        httpx.Client(base_url=server.url, timeout=None) as client,
    ):
        model = client.get("/v1/models").json()["data"][0]["id"]
        found = list(needles(continuing(client, model), TOKENS, DEPTHS, BEGINNING))
    assert all(one.prompt_tokens > TOKENS * 0.9 for one in found)
    assert [one.is_found for one in found] == [True, True]
