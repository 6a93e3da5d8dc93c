"""JSON that was made to hurt, and values in sentences."""

import os
from pathlib import Path

import pytest

from engine.files import FileRefused, brief, put_in_place, read_json


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a": "\\ud800"}', "a lone surrogate"),
        ("9" * 5000, "not JSON"),
        ("{", "not JSON"),
        ("", "not JSON"),
    ],
)
def test_refused_in_one_sentence(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(FileRefused, match=reason):
        read_json(tmp_path / "file", 1 << 20)


def test_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text('\ufeff{"a": "\\ud83d\\ude00"}', encoding="utf-8")
    assert read_json(tmp_path / "file", 100) == {"a": "\U0001f600"}


def test_values_are_cut() -> None:
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    assert max(map(len, map(brief, (deep, "x" * 10_000, 10**5000, list(range(1000)))))) < 200
    assert brief("silu") == "'silu'"


def test_a_name_is_given_when_the_disk_has_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file of the folder, however deep, before the rename; a link to nowhere is in nobody's way."""
    draft, output, stored = tmp_path / "draft", tmp_path / "output", list[str]()

    def told(descriptor: int) -> None:
        assert not output.exists()
        stored.extend(
            path.name
            for path in draft.rglob("*")
            if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor))
        )

    monkeypatch.setattr(os, "fsync", told)
    (draft / "part").mkdir(parents=True)
    (draft / "manifest").touch()
    (draft / "part" / "weights").touch()
    (draft / "link").symlink_to("nowhere")
    put_in_place(draft, output)
    assert sorted(stored) == ["manifest", "weights"]
    assert sorted(path.name for path in output.iterdir()) == ["link", "manifest", "part"]
