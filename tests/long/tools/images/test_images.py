"""The encoders beside transformers that take seconds."""

from pathlib import Path

import pytest

from tests.tools.images.test_images import LARGE, check


@pytest.mark.parametrize("family", LARGE)
def test_rows_are_those_of_transformers(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check(family, tmp_path, monkeypatch, capsys)
