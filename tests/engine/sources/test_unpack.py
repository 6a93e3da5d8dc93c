"""Archives that are hostile, damaged, or in the way of another folder."""

from pathlib import Path

import pytest

from engine.sources.download import unpack
from engine.sources.names import FetchFailed
from tests.engine.sources.ai_hub.stand_ins import FILES, archive


def test_an_entry_outside_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(archive({"../evil.txt": b"x"}))
    with pytest.raises(FetchFailed, match="outside its folder"):
        unpack(tmp_path / "a.zip", tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip"]


def test_a_folder_that_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(archive(FILES))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "precious").touch()
    with pytest.raises(FetchFailed, match=r"cannot be unpacked into .*: File exists"):
        unpack(tmp_path / "a.zip", tmp_path / "b")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["precious"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b"]


def test_a_damaged_archive_is_removed(tmp_path: Path) -> None:
    content = bytearray(archive(FILES))
    content[5000] ^= 1
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(FetchFailed, match="is damaged"):
        unpack(tmp_path / "a.zip", tmp_path / "b")
    assert list(tmp_path.iterdir()) == []
