"""Sharing rows and pricing shapes, by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bundle.variant import ShapeTable, StepShape, pin
from engine.core.policy import CostTable, Demand, Extent, share_rows
from engine.core.sequence import Capacity, blocks_for
from tests.engine.worker.simulation import fixed, free, segmented

COSTS = CostTable({StepShape(1, 128): 38.7, StepShape(32, 128): 42.2, StepShape(128, 128): 128.0})
SHAPES = fixed((1, 128), (32, 128), (128, 128))


@pytest.mark.parametrize(
    ("decodes", "prefill", "gap", "rows", "useful"),
    [
        (1, 0, 1000.0, 1, 1),  # one row: the cheapest step
        (8, 0, 1000.0, 32, 8),
        (8, 300, 1000.0, 128, 128),
        (8, 300, 100.0, 32, 32),  # a 128-row step would break the bound
        (0, 300, 100.0, 128, 128),  # nobody decodes: no bound
        (8, 300, 1.0, 32, 32),  # nothing meets it: the least gap, which one row a step would make longer
        (16, 0, 1.0, 32, 16),
        (40, 0, 1000.0, 32, 32),
    ],
)
def test_share_rows(decodes: int, prefill: int, gap: float, rows: int, useful: int) -> None:
    share = share_rows(SHAPES, COSTS, Demand(decodes, prefill), Extent(64, 64, 128), gap)
    assert (share.shape.rows, share.useful) == (rows, useful)


SIZES = st.sets(st.integers(1, 200), min_size=1, max_size=4).map(sorted)


@given(SIZES, SIZES, st.integers(1, 400), st.floats(0.0, 1.0))
def test_the_smallest_variant_that_fits_else_the_largest(
    rows: list[int], pasts: list[int], wanted: int, place: float
) -> None:
    """Where a step costs little more the wider it is, so that another step is dearer than any width."""
    cached = round(place * pasts[-1])  # what no context holds is refused before it comes here
    shapes = fixed(*((count, past) for count in rows for past in pasts))
    costs = CostTable({shape: 1.0 + 1e-6 * shape.rows + 1e-5 * shape.past for shape in shapes.fixed})
    share = share_rows(shapes, costs, Demand(0, wanted), Extent(cached, cached, pasts[-1]), 1e9)
    assert share.shape.past == next(past for past in pasts if past >= cached)
    assert share.shape.rows == next((count for count in rows if count >= wanted), rows[-1])
    assert share.prefill_rows == min(wanted, share.shape.rows)


@given(SIZES, st.integers(1, 9), st.integers(0, 40), st.integers(0, 200), st.booleans())
def test_rows_are_shared_out_in_whole_blocks(
    sizes: list[int], unit: int, blocks: int, prompts: int, prefill_first: bool
) -> None:
    """What is less than a block is given only where it is all that is wanted."""
    shapes = replace(fixed(*((rows + unit, 128) for rows in sizes)), unit=unit)
    demand = Demand(blocks * unit, prompts * unit or unit, prefill_first)
    share = share_rows(shapes, CostTable({}), demand, Extent(0, 0, 128), 100.0)
    assert share.useful > 0 and share.useful <= share.shape.rows
    assert share.decodes % unit == 0 and share.prefill_rows % unit == 0
    free_share = share_rows(replace(free(unit + 7, 512), unit=unit), CostTable({}), demand, Extent(0, 0, 64), 100.0)
    assert free_share.useful > 0 and free_share.decodes % unit == free_share.prefill_rows % unit == 0


def test_starved_prefill_gets_a_quarter() -> None:
    share = share_rows(fixed((8, 128)), CostTable({}), Demand(20, 50, prefill_first=True), Extent(0, 0, 128), 100.0)
    assert (share.decodes, share.prefill_rows) == (6, 2)


KV_ONLY = fixed((1, 255), (8, 248), prefill=((128, 128),))


@pytest.mark.parametrize(
    ("demand", "columns", "expected"),
    [
        (Demand(0, 200, kv_only_rows=199), 64, (128, 0, 128)),
        (Demand(0, 2, kv_only_rows=1), 64, (8, 0, 2)),  # nothing is gained without logits
        (Demand(0, 200, kv_only_rows=0), 64, (8, 0, 8)),  # all of them are scored
        (Demand(0, 200, kv_only_rows=199), 200, (8, 0, 8)),  # the columns in use do not fit beside 128 rows
        (Demand(3, 200, kv_only_rows=199), 64, (8, 3, 5)),
        (Demand(3, 200, prefill_first=True, kv_only_rows=199), 64, (128, 0, 128)),
    ],
)
def test_a_shape_without_logits_computes_what_comes_before_them(
    demand: Demand, columns: int, expected: tuple[int, int, int]
) -> None:
    share = share_rows(KV_ONLY, CostTable({}), demand, Extent(columns, columns, 255), 100.0)
    assert (share.shape.rows, share.decodes, share.prefill_rows) == expected


def test_kept_blocks_may_cost_width_but_never_rows() -> None:
    shapes = fixed((1, 255), (128, 128))
    roomy = share_rows(shapes, CostTable({}), Demand(0, 200), Extent(16, 240, 255), 1.0)
    assert roomy.shape == StepShape(128, 128)
    shapes = fixed((1, 255), (1, 127))
    assert share_rows(shapes, CostTable({}), Demand(1, 0), Extent(16, 200, 255), 1.0).shape == StepShape(1, 255)


def test_free_shapes_fit_the_demand_exactly_and_respect_the_bound() -> None:
    costs = CostTable({StepShape(1, 64): 19.0, StepShape(8, 64): 71.0, StepShape(64, 64): 357.0})
    assert share_rows(free(256, 512), costs, Demand(3, 0), Extent(40, 40, 64), 250.0).shape == StepShape(3, 64)
    assert share_rows(free(256, 512), costs, Demand(1, 200, prompts=1), Extent(70, 70, 64), 100.0).shape == StepShape(
        8, 128
    )
    assert share_rows(free(256, 512), costs, Demand(0, 200), Extent(70, 70, 64), 100.0).useful >= 64


def test_of_any_number_of_rows_steps_with_prompts_are_measured_by_one_in_which_all_decode() -> None:
    """20 ms and 1 ms a row: two decodes and three prompts would decode in 25 ms, with twelve in 34. Who decodes already
    changes nothing. Fixed shapes stay whole."""
    costs = CostTable({StepShape(rows, past): 20.0 + rows for rows in (1, 256) for past in (0, 1000)})
    for decodes, prompts, gap, rows in ((2, 3, 1e3, 48), (4, 1, 1e3, 48), (2, 12, 1e3, 56), (2, 12, 60.0, 40)):
        demand = Demand(decodes, 1000, prompts=prompts)
        share = share_rows(segmented(256, 10**5), costs, demand, Extent(0, 0, 0), gap)
        assert (share.decodes, share.shape.rows) == (decodes, rows)
    share = share_rows(fixed((2, 128), (256, 128)), costs, Demand(2, 1000), Extent(0, 0, 0), 1000.0)
    assert share.shape.rows == 256


def test_the_prompts_of_those_who_are_to_come_count_as_what_they_will_read() -> None:
    """A column takes 0.01 ms: two streams over 2,000 are 22 + 20 ms, four over 4,000 24 + 40."""
    costs = CostTable({StepShape(rows, past): 20.0 + rows + past / 100 for rows in (1, 256) for past in (0, 10**5)})
    for prompts, slots, rows in ((1, 1000, 96), (2, 2000, 112), (4, 4000, 160), (4, 40, 80)):
        demand, extent = Demand(2, 1000, prompts=prompts, prompt_slots=slots), Extent(2000, 2000, 2000)
        assert share_rows(segmented(256, 10**5), costs, demand, extent, 1e3).shape.rows == rows


@pytest.mark.parametrize("preferred", [64, 2048, 8192])
def test_a_pool_that_is_wider_than_what_is_read_does_not_take_rows_of_prompts(preferred: int) -> None:
    costs = CostTable({StepShape(rows, past): 20.0 + rows + past / 50 for rows in (1, 256) for past in (64, 16_384)})
    share = share_rows(free(256, 16_384), costs, Demand(1, 200, prompts=1), Extent(64, preferred, preferred), 400.0)
    assert share.decodes == 1 and share.prefill_rows >= 31


def test_costs_interpolate_in_rows_and_past() -> None:
    costs = CostTable(
        {StepShape(1, 64): 10.0, StepShape(9, 64): 18.0, StepShape(1, 164): 20.0, StepShape(9, 164): 28.0}
    )
    assert costs.milliseconds(StepShape(5, 64)) == pytest.approx(14.0)
    assert costs.milliseconds(StepShape(5, 114)) == pytest.approx(19.0)
    assert costs.milliseconds(StepShape(17, 64)) == pytest.approx(26.0)
    assert costs.milliseconds(StepShape(1, 10)) == pytest.approx(10.0)
    assert CostTable({}).milliseconds(StepShape(7, 7)) == 1.0


def test_one_measured_row_count_is_not_flat_in_rows() -> None:
    costs = CostTable({StepShape(1, 64): 10.0, StepShape(8, 64): 30.0, StepShape(1, 1024): 15.0})
    assert costs.milliseconds(StepShape(64, 1024)) >= costs.milliseconds(StepShape(64, 64))


def test_costs_follow_what_is_observed() -> None:
    shape = StepShape(8, 64)
    costs = CostTable({shape: 10.0})
    for _ in range(200):
        costs.observe(shape, 30.0)
    assert costs.milliseconds(shape) == pytest.approx(30.0, rel=0.01)
    costs.observe(shape, 1e9)
    assert costs.milliseconds(shape) < 40.0  # one outlier says little


def test_sixteen_decodes_are_one_step_even_over_the_bound() -> None:
    costs = CostTable({StepShape(1, 64): 89.0, StepShape(8, 64): 318.0, StepShape(32, 64): 778.0})
    share = share_rows(free(256, 4096), costs, Demand(16, 0), Extent(40, 40, 64), 250.0)
    assert share.decodes == 16


def test_relaying_a_pool_is_charged() -> None:
    shapes = fixed((1, 1000), (128, 900))
    measured = {StepShape(1, 1000): 40.0, StepShape(128, 900): 60.0}
    few, many = Demand(0, 1), Demand(0, 128)
    dear = CostTable(measured, slot_ms=1.0)
    assert share_rows(shapes, dear, few, Extent(10, 10, 1000), 1e9).shape.rows == 1
    assert share_rows(shapes, dear, many, Extent(10, 10, 1000), 1e9).shape.rows == 128
    assert share_rows(shapes, dear, Demand(0, 9), Extent(10, 10, 1000), 1e9).shape.rows == 1
    assert share_rows(shapes, CostTable(measured), Demand(0, 9), Extent(10, 10, 1000), 1e9).shape.rows == 128


def test_what_staying_costs_pays_for_re_laying() -> None:
    shapes = fixed((1, 1000), (128, 900))
    costs = CostTable({StepShape(1, 1000): 40.0, StepShape(128, 900): 60.0}, slot_ms=0.1)  # re-laying takes 90 ms
    shares = [share_rows(shapes, costs, Demand(1, 0), Extent(10, 10, 900, forgone), 1e9) for forgone in (0, 69, 71)]
    assert [(share.shape.rows, share.regret_ms) for share in shares] == [(128, 20.0), (128, 20.0), (1, 0.0)]
    assert share_rows(shapes, costs, Demand(1, 0), Extent(10, 10, 1000), 1e9).regret_ms == 0.0
    # Two rows at 60 ms are better than one at 40: that step of one row does the work of 30 ms.
    assert share_rows(shapes, costs, Demand(2, 0), Extent(10, 10, 1000), 1e9).regret_ms == pytest.approx(10.0)


def test_capacity_and_admission() -> None:
    assert Capacity(64, 1000).tokens_per_sequence == 65
    assert Capacity(64, 40).tokens_per_sequence == 40
    assert [blocks_for(tokens, 16) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_shape_tables() -> None:
    assert free(64, 4096).round_past(1) == 64
    assert free(64, 4096).round_past(65) == 128
    assert free(64, 4096).round_past(4096) == 4096
    buckets = fixed((1, 64), (8, 64), (1, 256), (8, 256))
    assert buckets.round_past(65) == 256
    assert buckets.candidates(10) == (StepShape(1, 64), StepShape(8, 64))
    assert buckets.candidates(100) == (StepShape(1, 256), StepShape(8, 256))
    assert pin(buckets, 4).fixed == (StepShape(8, 256),)
    assert pin(free(64, 512), 32).fixed == (StepShape(32, 512),)
    assert isinstance(pin(buckets, 99), ShapeTable)
    # One context for all rows, as in an NPU bundle: one row has the widest past, but would serve one client at a time.
    same_context = ShapeTable((StepShape(1, 255), StepShape(32, 224), StepShape(128, 128)), 128, 255)
    assert pin(same_context, 32).fixed == (StepShape(32, 224),)


def test_how_far_a_pool_is_shared() -> None:
    stock = fixed((1, 4095), (32, 4064), (128, 3968), (1, 1023), (128, 896))
    assert [stock.reach(sequences) for sequences in (1, 2, 32, 33, 128, 999)] == [4095, 4064, 4064, 3968, 3968, 3968]
    assert fixed((1, 512), (32, 512)).reach(2) == 512
    assert fixed((1, 4095), (128, 896)).reach(2) == 4095  # rows are not worth three quarters of the pool
    assert free(64, 4096).reach(99) == 4096
    assert [replace(stock, unit=16).reach(sequences) for sequences in (1, 2, 3, 9)] == [4064, 4064, 3968, 3968]


def test_a_kept_prefix_never_keeps_prefill_from_a_shape_without_logits() -> None:
    share = share_rows(KV_ONLY, CostTable({}), Demand(0, 200, kv_only_rows=199), Extent(64, 250, 255), 100.0)
    assert (share.shape, share.prefill_rows) == (StepShape(128, 128), 128)


def test_one_observation_says_at_most_a_factor_of_eight() -> None:
    shape = StepShape(8, 64)
    for observed, bound in ((0.0, 10.0 / 8), (1e9, 10.0 * 8)):
        costs = CostTable({shape: 10.0})
        costs.observe(shape, observed)
        assert costs.milliseconds(shape) == pytest.approx(10.0 + 0.05 * (bound - 10.0))
        for _ in range(500):
            costs.observe(shape, observed)
        assert costs.milliseconds(shape) == pytest.approx(bound)


def test_a_step_of_segments_costs_what_its_rows_read() -> None:
    """Of 250 ms the 8 decodes take 60 and their 2,000 columns 30; a prompt row takes 2 ms, and what it reads.

    The prompt's past is read three times, and once more for each five rows.
    """
    costs = CostTable(
        {StepShape(rows, past): 44.0 + 2.0 * rows + 0.015 * past for rows in (1, 256) for past in (0, 1000)}
    )
    demand = Demand(8, 1000)
    fresh = share_rows(segmented(256, 10**5), costs, demand, Extent(2000, 2000, 2000), 250.0)
    later = share_rows(segmented(256, 10**5), costs, demand, Extent(2000, 2000, 2000, prompt_past=1000), 250.0)
    assert (fresh.decodes, fresh.shape.rows, fresh.shape.past) == (8, 80, 2048)
    assert (later.decodes, later.shape.rows, later.shape.past) == (8, 28, 2000 + 3 * 1000 + 20 * 200 + 24)
    assert all(costs.milliseconds(share.shape) <= 250.0 for share in (fresh, later))
    alone = share_rows(segmented(256, 10**5), costs, Demand(8, 0), Extent(2000, 2000, 2000, prompt_past=1000), 250.0)
    assert alone.shape == StepShape(8, 2048), "a prompt that has no rows in the step reads nothing"


def test_beside_decodes_a_prompt_gets_the_shortest_step_that_wins_nearly_as_much() -> None:
    """40 ms and 1 ms a row: 128 rows are 0.76 a millisecond, 112 are 0.74, 96 rows 0.71, which is too little."""
    costs = CostTable({StepShape(rows, past): 40.0 + rows for rows in (1, 256) for past in (0, 1000)})
    for decodes, rows in ((8, 112), (0, 128)):  # without decodes nobody waits for the rest
        share = share_rows(segmented(128, 10**5), costs, Demand(decodes, 1000, prompts=16), Extent(0, 0, 0), 250.0)
        assert (share.decodes, share.shape.rows) == (decodes, rows)
