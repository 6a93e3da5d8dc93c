"""What is written before a step is over: certain rows, finite ones, and only for the step they were announced for."""

from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import Manifest, load_manifest
from engine.bundle.variant import StepShape
from engine.runtime.buffers import Arena, Fresh, layer_graphs
from engine.runtime.pools import KvWrites, PastPool
from tests.bundles import Bundles
from tests.engine.runtime.watched import watch_writes

SHAPE = StepShape(8, 56)
NONE = np.zeros(0, np.int64)


@pytest.fixture(scope="module")
def folder(bundles: Bundles) -> Path:
    return bundles("fixed")


class Stand:
    """Pools of zeros, and the outputs of a step that are row + 1 everywhere."""

    def __init__(self, manifest: Manifest) -> None:
        self.layers = manifest.model.layers
        self.pool = PastPool(manifest, 56)
        self.fresh = Fresh(Arena(), manifest, layer_graphs(manifest, StepShape(8, 56)), 8)
        self.fresh.keys[...] = np.arange(1, 9)
        self.fresh.values[...] = np.arange(1, 9)[:, None]
        self.events: list[str] = []
        self.writes = KvWrites(self.pool)
        watch_writes(self.writes, self.events.append)

    def step_over(self, rows: np.ndarray = NONE, slots: np.ndarray = NONE, cut: int = 1) -> None:
        """A step whose first part has `cut` layers."""
        self.writes.begin(rows, slots)
        self.writes.part_done(self.fresh, slice(0, 0))
        self.writes.part_done(self.fresh, slice(0, cut))
        self.writes.part_done(self.fresh, slice(cut, self.layers))
        self.writes.end()
        self.writes.finish()

    def columns(self, layer: int) -> dict[int, float]:
        """What stands in the columns that are not empty, in keys and values alike."""
        keys, values = self.pool.columns.keys[layer, 0, 0, 0], self.pool.columns.values[layer, 0, 0, :, 0]
        assert keys.tolist() == values.tolist()
        return {index: float(value) for index, value in enumerate(keys) if value}


@pytest.fixture
def stand(folder: Path) -> Stand:
    return Stand(load_manifest(folder))


ROWS, COLUMNS = np.array([2, 3, 7]), np.array([20, 21, 5])


def test_every_layer_of_what_was_announced_and_nothing_else(stand: Stand) -> None:
    stand.step_over(ROWS, COLUMNS)
    for layer in range(stand.layers):
        assert stand.columns(layer) == {20: 3.0, 21: 4.0, 5: 8.0}
    rows, columns = stand.writes.left(np.array([1, 2, 3, 7]), np.array([9, 20, 21, 5]))
    assert (rows.tolist(), columns.tolist()) == ([1], [9])
    last = stand.layers - 1
    assert stand.events == [
        *("writing layers 0 to 0", "wrote layers 0 to 0"),
        *(f"writing layers 1 to {last}", f"wrote layers 1 to {last}"),
    ]


def test_the_next_step_writes_nothing_that_was_not_announced_for_it(stand: Stand) -> None:
    stand.step_over(ROWS, COLUMNS)
    stand.fresh.keys[...] = stand.fresh.values[...] = 99
    stand.step_over()
    assert stand.columns(0) == {20: 3.0, 21: 4.0, 5: 8.0}
    assert stand.writes.left(ROWS, COLUMNS)[0].tolist() == ROWS.tolist()


def test_a_step_that_broke_off_has_written_nothing_for_good(stand: Stand) -> None:
    stand.writes.begin(ROWS, COLUMNS)
    stand.writes.part_done(stand.fresh, slice(0, 1))
    assert stand.writes.left(ROWS, COLUMNS)[0].tolist() == ROWS.tolist()


def test_columns_beyond_the_pool_are_left_for_later(stand: Stand) -> None:
    stand.step_over(ROWS, np.array([20, 56, 5]))
    assert stand.columns(0) == {20: 3.0, 5: 8.0}
    assert stand.writes.left(ROWS, np.array([20, 56, 5]))[0].tolist() == [3]


def test_a_row_that_is_not_finite_reaches_no_pool_with_that_part(stand: Stand) -> None:
    stand.fresh.keys[1, 0, 0, 0, 3] = np.nan
    stand.fresh.values[1:, 0, 0, 7, 0] = np.inf
    stand.step_over(ROWS, COLUMNS)
    assert stand.columns(0) == {20: 3.0, 21: 4.0, 5: 8.0}
    for layer in range(1, stand.layers):
        assert stand.columns(layer) == {20: 3.0}
    assert np.isfinite(stand.pool.columns.keys).all() and np.isfinite(stand.pool.columns.values).all()


def test_what_goes_wrong_beside_is_raised(stand: Stand) -> None:
    stand.writes.begin(ROWS, COLUMNS)
    stand.writes.part_done(stand.fresh, slice(0, 1))
    stand.writes.finish()
    stand.writes._pool = None  # type: ignore[assignment]
    stand.writes.part_done(stand.fresh, slice(1, 2))
    with pytest.raises(AttributeError):
        stand.writes.finish()
    stand.writes.close()


def test_the_last_part_is_written_when_the_next_step_has_begun_and_before_its_own_part_runs(stand: Stand) -> None:
    last = slice(1, stand.layers)
    stand.writes.begin(ROWS, COLUMNS)
    stand.writes.part_begins(stand.fresh, slice(0, 1))
    stand.writes.part_done(stand.fresh, slice(0, 1))
    stand.writes.part_begins(stand.fresh, last)
    stand.writes.part_done(stand.fresh, last)
    stand.writes.end()
    assert len(stand.writes.left(ROWS, COLUMNS)[0]) == 0 and not stand.columns(1)
    stand.writes.begin(NONE, NONE)
    stand.writes.part_begins(stand.fresh, slice(0, 1))
    assert stand.columns(0) == {20: 3.0, 21: 4.0, 5: 8.0}
    stand.writes.part_begins(stand.fresh, last)
    for layer in range(stand.layers):
        assert stand.columns(layer) == {20: 3.0, 21: 4.0, 5: 8.0}
    stand.writes.close()


def test_outputs_of_another_size_wait_for_all_that_is_not_written(stand: Stand, folder: Path) -> None:
    stand.writes.begin(ROWS, COLUMNS)
    stand.writes.part_done(stand.fresh, slice(1, 2))
    stand.writes.end()
    stand.writes.begin(NONE, NONE)
    manifest = load_manifest(folder)
    other = Fresh(Arena(), manifest, layer_graphs(manifest, SHAPE), 1)
    stand.writes.part_begins(other, slice(0, 1))
    assert stand.columns(1) == {20: 3.0, 21: 4.0, 5: 8.0}
    stand.writes.close()


def test_a_block_is_moved_after_what_the_step_before_writes_in_it(stand: Stand) -> None:
    stand.writes.begin(ROWS, COLUMNS)
    stand.writes.part_done(stand.fresh, slice(0, 1))
    stand.writes.end()
    seen: list[dict[int, float]] = []
    stand.writes.move(lambda: seen.append(stand.columns(0)))
    stand.writes.finish()
    assert seen == [{20: 3.0, 21: 4.0, 5: 8.0}]
    stand.writes.close()


def test_what_is_kept_later_is_written_beside_and_before_its_own_part_runs(stand: Stand) -> None:
    """What sampling has accepted: all layers, behind what was due; a slot of a part is there when that part runs."""
    stand.step_over()
    stand.writes.write(stand.fresh, ROWS, COLUMNS, is_beside=True)
    stand.writes.begin(NONE, NONE)
    stand.writes.part_begins(stand.fresh, slice(0, 1))
    for layer in range(stand.layers):
        assert stand.columns(layer) == {20: 3.0, 21: 4.0, 5: 8.0}
    stand.writes.close()


def test_a_cpu_writes_before_it_goes_on(stand: Stand) -> None:
    stand.step_over()
    stand.writes.write(stand.fresh, ROWS, COLUMNS, is_beside=False)
    assert stand.columns(0) == {20: 3.0, 21: 4.0, 5: 8.0}
    stand.writes.close()


def test_moves_that_are_over_are_forgotten_and_what_went_wrong_is_not(stand: Stand) -> None:
    def fail() -> None:
        raise MemoryError("no room")

    stand.writes.move(fail)
    for _ in range(50):
        stand.writes.move(lambda: None)
        stand.writes._thread.submit(lambda: None).result()
    assert len(stand.writes._moves) == 2
    with pytest.raises(MemoryError, match="no room"):
        stand.writes.finish()
