"""JSON that was made to hurt, and values in sentences."""

from pathlib import Path

import pytest

from engine.files import FileRefused, brief, read_json


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
