"""Reading a checkpoint: what was read does not stay mapped."""

from pathlib import Path

import numpy as np
import pytest

from engine.compile.sources.checkpoint import SafetensorsCheckpoint
from tools.random_checkpoint import SHAPES, write_checkpoint

NAME = "model.embed_tokens.weight"


def test_files_are_let_go_as_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path / "model", SHAPES["tiny"])
    size = (SHAPES["tiny"].vocab, SHAPES["tiny"].hidden)
    with SafetensorsCheckpoint(tmp_path / "model") as checkpoint:
        whole = checkpoint.tensor(NAME, size)
    opened: list[str] = []
    reopen = SafetensorsCheckpoint._open

    def counted(checkpoint: SafetensorsCheckpoint, name: str) -> None:
        opened.append(name)
        reopen(checkpoint, name)

    monkeypatch.setattr(SafetensorsCheckpoint, "_open", counted)
    monkeypatch.setattr("engine.compile.sources.checkpoint.RELEASE_BYTES", whole.nbytes // 4)
    with SafetensorsCheckpoint(tmp_path / "model") as checkpoint:
        pieces = [checkpoint.rows(NAME, start, start + 16) for start in range(0, size[0], 16)]
    assert len(opened) == 5  # at the start, and after every quarter
    assert np.array_equal(np.concatenate(pieces), whole)
