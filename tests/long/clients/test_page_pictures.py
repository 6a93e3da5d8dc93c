"""The script that draws the pictures of the page works, and the pictures in docs/ are small and shown."""

import struct
from pathlib import Path

import pytest

from tests.clients.page_pictures import NAMES, draw
from tests.clients.servers import ROOT, Servers

MOST_BYTES = 200_000


def size(file: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    head = file.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:])
    return width, height


def test_the_pictures_can_be_drawn_again(servers: Servers, tmp_path: Path) -> None:
    draw(tmp_path, servers, tmp_path)
    assert {name: size(tmp_path / name) for name in NAMES} == {
        name: size(ROOT / "docs" / "how-to" / name) for name in NAMES
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_small_and_shown(name: str) -> None:
    assert 20_000 < (ROOT / "docs" / "how-to" / name).stat().st_size <= MOST_BYTES
    assert f"]({name})" in (ROOT / "docs" / "how-to" / "page.md").read_text(encoding="utf-8")
