"""The script that draws the pictures of the page works; those in docs/ show the page as it is, are small and shown."""

from pathlib import Path

import pytest
from PIL import Image

from tests.clients.page_pictures import NAMES, draw
from tests.clients.servers import ROOT, Servers

MOST_BYTES = 200_000


def size_and_labels(file: Path) -> tuple[tuple[int, int], str | None]:
    """Width and height of a PNG, and the page's words when it was drawn."""
    with Image.open(file, formats=("PNG",)) as picture:
        picture.load()
        return picture.size, picture.info.get("Labels")


def test_the_pictures_drawn_again_have_the_same_sizes_and_words(servers: Servers, tmp_path: Path) -> None:
    draw(tmp_path, servers, tmp_path)
    assert {name: size_and_labels(tmp_path / name) for name in NAMES} == {
        name: size_and_labels(ROOT / "docs" / "how-to" / name) for name in NAMES
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_small_and_shown(name: str) -> None:
    assert 20_000 < (ROOT / "docs" / "how-to" / name).stat().st_size <= MOST_BYTES
    assert f"]({name})" in (ROOT / "docs" / "how-to" / "page.md").read_text(encoding="utf-8")
