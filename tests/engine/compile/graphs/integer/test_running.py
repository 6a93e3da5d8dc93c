"""Integer bundles in the server's own runtime, on the CPU provider."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import Manifest
from engine.bundle.variant import StepShape
from engine.compile.arguments import Quant
from engine.core.plan import StepPlan
from engine.runtime.interface import pack
from tests.engine.compile.graphs.integer.conftest import Bench, open_bench, segment

Make = Callable[..., tuple[Path, Manifest]]
PROMPT = tuple((index * 31 + 7) % 256 for index in range(20))
OTHER = (9, 9, 140, 3, 250, 61, 12)
SHAPE = StepShape(32, 96)


@pytest.fixture(params=[Quant.W8A16, Quant.W4A16])
def bench(integer_bundle: Make, request: pytest.FixtureRequest) -> Iterator[Bench]:
    opened = open_bench(*integer_bundle(request.param), SHAPE)
    yield opened
    opened.runtime.close()


def test_neighbours_change_no_bit_and_other_places_only_rounding(bench: Bench) -> None:
    """The CPU provider computes these graphs with floats in between, whose sums have an order."""
    first = bench.run(segment("a", PROMPT, 0, (0, 1)))
    then = bench.run(segment("a", (33,), 20, (0, 1)))
    beside = bench.run(segment("b", OTHER, 0, (2,)), segment("a", PROMPT, 0, (0, 1)))
    after = bench.run(segment("b", (1,), 7, (2,)), segment("a", (33,), 20, (0, 1)))
    np.testing.assert_array_equal(beside[1], first[0])
    np.testing.assert_array_equal(after[1], then[0])
    # The same rows behind and before another sequence, over other columns in another order.
    packed = bench.run(segment("a", PROMPT, 0, (5, 3)), segment("b", OTHER, 0, (2,)))
    moved = bench.run(segment("c", (5, 6), 0, (4,)), segment("a", (33,), 20, (5, 3)), segment("b", (1,), 7, (2,)))
    for got, want in ((packed[0], first[0]), (moved[1], then[0])):
        assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()
        assert got.argmax() == want.argmax()


def test_extreme_codes_in_stale_columns_change_no_bit(bench: Bench) -> None:
    bench.run(segment("a", PROMPT, 0, (0, 1)))
    batch = pack(StepPlan(SHAPE, (segment("a", (33,), 20, (0, 1)),)), 16)
    clean = bench.runtime.run(batch).decoded().copy()
    keys, values = bench.pool()
    for key_code, value_code in ((255, 0), (0, 255), (255, 255)):
        keys[..., 20:] = key_code
        values[..., 20:, :] = value_code
        np.testing.assert_array_equal(bench.runtime.run(batch).decoded(), clean)


def test_unwritten_columns_hold_the_code_of_zero(bench: Bench) -> None:
    bench.run(segment("a", PROMPT, 0, (0, 1)))
    keys, values = bench.pool()
    assert (keys[..., 20:] == 128).all() and (values[..., 20:, :] == 128).all()
    assert (keys[..., :20] != 128).any()


def test_variants_agree_within_a_code_of_the_cache(integer_bundle: Make) -> None:
    folder, manifest = integer_bundle()
    found = []
    for shape in (StepShape(32, 32), StepShape(8, 120), StepShape(1, 127)):
        bench = open_bench(folder, manifest, shape)
        for start in range(0, 16, shape.rows):
            logits = bench.run(segment("a", PROMPT[start : min(16, start + shape.rows)], start, (0,)))
        keys, values = bench.pool()
        found.append((keys[..., :16].astype(int), values[..., :16, :].astype(int), logits[-1]))
        bench.runtime.close()
    for keys, values, logits in found[1:]:
        assert np.abs(keys - found[0][0]).max() <= 1
        assert np.abs(values - found[0][1]).max() <= 1
        assert logits.argmax() == found[0][2].argmax()
