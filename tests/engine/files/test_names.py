"""No name leads out of its folder."""

import sys
from pathlib import Path

import pytest

from engine.files import FileRefused, confined

LINKS = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


@pytest.mark.parametrize("name", ["file", "sub/file", "a b.json", "ä.json", "..x"])
def test_names_inside(name: str, tmp_path: Path) -> None:
    assert confined(tmp_path, name) == tmp_path / name


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/../../x", "/etc/passwd", "C:\\x", "\\x", "a\\..\\..\\x", "a\0b", "a\nb", "\ud800"]
)
def test_names_outside(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileRefused, match="does not stay inside its folder"):
        confined(tmp_path, name)


@LINKS
def test_links(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (tmp_path / "secret").write_text("x")
    (folder / "inside").write_text("x")
    (folder / "near").symlink_to("inside")
    (folder / "far").symlink_to("../secret")
    (folder / "up").symlink_to("..")
    (folder / "circle").symlink_to("circle")
    assert confined(folder, "near") == folder / "near"
    for name, reason in (("far", "a link to a place outside"), ("up/secret", "a link"), ("circle", "cannot be")):
        with pytest.raises(FileRefused, match=reason):
            confined(folder, name)


@LINKS
def test_a_snapshot_of_hugging_faces_cache_may_link_to_its_blobs(tmp_path: Path) -> None:
    folder = tmp_path / "models--x" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    (tmp_path / "models--x" / "blobs").mkdir()
    (tmp_path / "models--x" / "blobs" / "abc").write_text("x")
    (tmp_path / "secret").write_text("x")
    (folder / "part.bin").symlink_to("../../blobs/abc")
    (folder / "far").symlink_to("../../../secret")
    assert confined(folder, "part.bin").read_text() == "x"
    with pytest.raises(FileRefused):
        confined(folder, "far")
