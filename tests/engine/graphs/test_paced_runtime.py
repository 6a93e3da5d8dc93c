"""A runtime that sleeps instead of computing: the rest of a pass is as real as with graphs."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.bundle.manifest import TextSpec
from engine.bundle.variant import PassShape, shape_table
from engine.graphs.batch import PackedBatch, pack
from engine.graphs.noise import NOISE_ROWS, noise_logits
from engine.graphs.paced_runtime import Pace, PacedRuntime
from engine.scheduling.plan import Segment, StepPlan
from engine.simulate.geometry import Geometry
from engine.simulate.paced_manifest import LOGITS, MASK, paced_manifest
from engine.simulate.published import Published, price
from tests.engine.worker.simulation import sequence_of

SIZES = Geometry("llama", 3, 16, 2, 2, 4, 8, 900, 1e4, 2)
DESK = Published("Tiny", "desk", 32, 40.0, 50.0, 96, SIZES.kv_bytes)
MANIFEST = paced_manifest(DESK, SIZES, TextSpec("tokenizer.json", None, stop_ids=(2, 5)), {})
WIDE = PassShape(32, 64)


@dataclass
class Clock:
    """Moves only while somebody sleeps."""

    now: float = 5.0
    naps: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


def opened(clock: Clock) -> PacedRuntime:
    shapes = shape_table(MANIFEST, 0)
    pace = Pace(DESK.title, price(DESK, shapes.fixed), lambda: clock.now, clock.sleep)
    return PacedRuntime(MANIFEST, shapes, 1, pace)


def batch_of(rows: int, shape: PassShape = WIDE) -> PackedBatch:
    targets = tuple(range(16, 16 + rows))
    segment = Segment(sequence_of("a"), (7,) * rows, 16, (0,), 16, targets, rows)
    return pack(StepPlan(shape, 0, (segment,)), 16)


def test_a_pass_takes_its_published_time() -> None:
    clock = Clock()
    runtime = opened(clock)
    for shape, milliseconds in ((PassShape(1, 64), 20.0), (WIDE, 40.0)):
        runtime.run(batch_of(1, shape))
        assert sum(clock.naps) == pytest.approx(milliseconds / 1000)
        clock.naps.clear()
    assert runtime.device == "paced desk/tiny: answers are noise"


def test_logits_are_codes_of_the_models_width_and_differ_between_passes() -> None:
    runtime = opened(Clock())
    first, second = runtime.run(batch_of(3)), runtime.run(batch_of(3))
    assert first.codes.shape == (3, 900) and first.codes.dtype == np.uint16
    assert (first.encoding.scale, first.encoding.zero_point) == LOGITS
    assert not np.array_equal(first.codes, second.codes)
    # Only views: making noise costs a pass nothing.
    assert np.shares_memory(first.codes, runtime._noise) and np.shares_memory(second.codes, runtime._noise)


def test_no_noise_ends_an_answer_and_it_has_the_shape_of_a_models() -> None:
    runtime = opened(Clock())
    values = runtime.run(batch_of(32)).decoded()
    assert not {2, 5} & set(np.argsort(-values, axis=1)[:, :890].ravel().tolist())
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    shares = -np.sort(-weights / weights.sum(axis=1, keepdims=True), axis=1)
    assert (shares[:, 0] > 0.2).all() and (shares[:, :50].sum(axis=1) > 0.9).all()


def test_noise_is_the_same_at_every_start_and_long_prompts_have_enough() -> None:
    runtime = opened(Clock())
    assert np.array_equal(runtime._noise, noise_logits(900, runtime._encoding, (2, 5)))
    assert runtime._noise_rows(NOISE_ROWS + 20).codes.shape == (NOISE_ROWS + 20, 900)


def test_row_inputs_are_filled() -> None:
    runtime = opened(Clock())
    batch = batch_of(2)
    runtime.run(batch)
    (codes, mask), *_ = runtime._passes[WIDE].inputs._masks.values()
    assert mask.dtype == np.uint16 and codes.tolist() == [0, MASK[1]]
    assert np.array_equal(mask == MASK[1], batch.visible())


def test_keys_and_values_are_written_moved_and_brought_back() -> None:
    runtime = opened(Clock())
    batch = batch_of(2)
    runtime.run(batch)
    pool, fresh = runtime._pools[0], runtime._passes[WIDE].fresh
    assert pool.keys.shape == (3, 2, 1, 4, 64) and pool.keys.dtype == np.uint8
    runtime.keep(0, np.array([30, 31]), np.array([16, 40]))
    assert np.array_equal(pool.keys[..., [16, 40]], fresh.keys[..., [30, 31]])
    assert np.array_equal(pool.values[..., [16, 40], :], fresh.values[..., [30, 31], :])
    page = pool.keys[..., 16:32].copy()
    runtime.offload(0, slice(16, 32), b"page")
    runtime.load(0, slice(0, 16), b"page")
    assert np.array_equal(pool.keys[..., :16], page)
    runtime.evict(b"page")
    runtime.free(0, (1,))
    assert runtime.non_finite_rows(np.arange(32)).tolist() == []
    runtime.close()


def test_keys_and_values_of_a_part_are_written_while_the_next_one_runs() -> None:
    seen: list[list[bool]] = []

    class Watch(Clock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            runtime._early.finish()
            seen.append(
                (runtime._pools[0].keys[..., 16] == runtime._passes[WIDE].fresh.keys[..., 30]).all((1, 2, 3)).tolist()
            )

    clock = Watch()
    runtime = opened(clock)
    runtime._passes[WIDE].fresh.keys[...] = 7
    runtime.expect(0, np.array([30]), np.array([16]))
    runtime.run(batch_of(2))
    # Two layers and one, which has the head: 512 + 384 numbers of each layer, 14,400 of the head.
    first, second = (nap / 0.04 for nap in clock.naps)
    assert (first, second) == (pytest.approx(2 * 896 / (3 * 896 + 14_400)), pytest.approx(1 - first))
    assert seen == [[False, False, False], [True, True, False]]
    runtime.keep(0, np.array([30, 31]), np.array([16, 40]))
    assert (runtime._pools[0].keys[..., [16, 40]] == 7).all()
    runtime.close()


def test_what_was_written_early_is_not_written_again() -> None:
    runtime = opened(Clock())
    runtime.expect(0, np.array([30]), np.array([16]))
    runtime.run(batch_of(2))
    runtime._early.finish()
    runtime._pools[0].keys[...] = 3
    runtime.keep(0, np.array([30, 31]), np.array([16, 40]))
    assert (runtime._pools[0].keys[..., 16] == 3).all()
    assert np.array_equal(runtime._pools[0].keys[..., 40], runtime._passes[WIDE].fresh.keys[..., 31])
    runtime.close()
