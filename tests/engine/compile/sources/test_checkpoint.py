"""Reading a checkpoint: what was read does not stay mapped."""

from pathlib import Path

import numpy as np
import pytest

from engine.compile.sources.checkpoint import CheckpointView, Float32, RememberedCheckpoint, SafetensorsCheckpoint
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


class Counting(CheckpointView):
    """Notes what is read."""

    def __init__(self, inner: SafetensorsCheckpoint) -> None:
        super().__init__(inner)
        self.reads: list[tuple[str, int, int]] = []

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        self.reads.append((name, 0, shape[0]))
        return super().tensor(name, shape)

    def rows(self, name: str, start: int, stop: int) -> Float32:
        self.reads.append((name, start, stop))
        return super().rows(name, start, stop)


def test_runs_of_rows_are_read_once_up_to_a_limit(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SHAPES["tiny"])
    with SafetensorsCheckpoint(tmp_path) as stored:
        counting = Counting(stored)
        shape = counting.shape(NAME)
        remembered = RememberedCheckpoint(counting, 4 * shape[0] * shape[1])
        for _ in range(2):
            assert np.array_equal(remembered.tensor(NAME, shape), stored.tensor(NAME, shape))
            assert np.array_equal(remembered.rows(NAME, 4, 6), stored.rows(NAME, 4, 6))  # no room is left for these
            assert np.array_equal(remembered.rows(NAME, 3, 4), stored.rows(NAME, 3, 4))
        assert counting.reads == [(NAME, 0, shape[0]), (NAME, 4, 6), (NAME, 3, 4), (NAME, 4, 6), (NAME, 3, 4)]
        counting.reads.clear()
        single = RememberedCheckpoint(counting, 4 * shape[0] * shape[1])
        for _ in range(2):
            single.rows(NAME, 4, 6)
            single.rows(NAME, 3, 4)
        assert counting.reads == [(NAME, 4, 6), (NAME, 3, 4), (NAME, 3, 4)]
