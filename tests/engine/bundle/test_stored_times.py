"""Step times in files."""

from pathlib import Path

import pytest

from engine.bundle.stored_times import StoredTimes, all_times, load_times, rows_of, save, times_file
from engine.bundle.variant import StepShape

TIMES = {StepShape(1, 64): 1.5, StepShape(8, 64): 2.5}
STORED = StoredTimes(rows_of(TIMES), "Oryon", 12, 4, "spinning")


def test_times_are_remembered_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "costs.json"
    save(path, STORED)
    assert load_times(path) == STORED
    assert STORED.of_shapes() == TIMES


@pytest.mark.parametrize("content", ["{", '{"times": [[1, 64, 0.0]]}', '{"times": [[-1, 64, 1.0]]}', "[[1, 64, 1.0]]"])
def test_a_damaged_file_is_as_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(content)
    assert load_times(tmp_path / "bad.json") is None
    assert load_times(tmp_path / "none.json") is None


def test_those_of_a_bundle_are_found_whatever_else_they_depend_on(tmp_path: Path) -> None:
    this, that = tmp_path / "this", tmp_path / "that"
    for bundle in (this, that):
        bundle.mkdir()
        (bundle / "manifest.json").write_text(bundle.name)
    paths = [times_file(tmp_path, this, cores) for cores in (8, 12)]
    assert len(set(paths)) == 2
    for path in (*paths, times_file(tmp_path, that, 8)):
        save(path, STORED)
    paths[0].write_text("damaged")
    assert all_times(tmp_path, this) == [STORED]
    assert all_times(tmp_path / "nowhere", this) == []
