"""How far a step may grow, by hand."""

from engine.bundle.variant import StepShape
from engine.core.policy import CostTable, Growth, Share
from tests.engine.worker.simulation import fixed, free, segmented

LINE = CostTable({StepShape(1, 64): 20.0, StepShape(4, 64): 38.0, StepShape(64, 64): 200.0})


def test_a_segmented_step_grows_row_by_row_and_pays_for_each() -> None:
    growth = Growth(segmented(64, 1024), LINE, Share(StepShape(1, 64), 1, 0), 0, 250.0)
    assert [growth.shape(rows).rows for rows in (0, 1, 3)] == [1, 2, 4]
    assert [growth.milliseconds(rows) for rows in (0, 1, 3)] == [20.0, 26.0, 38.0]
    assert growth.most(8) == 8
    assert growth.most(100) == 63


def test_guesses_read_the_columns_of_their_sequence() -> None:
    growth = Growth(segmented(64, 4096), LINE, Share(StepShape(1, 1024), 1, 0), 1000, 250.0)
    assert growth.shape(5) == StepShape(6, 1024 + 1024)


def test_a_pool_step_keeps_its_width() -> None:
    assert Growth(free(64, 1024), LINE, Share(StepShape(2, 128), 2, 0)).shape(3) == StepShape(5, 128)


def test_only_padding_while_prompts_wait_or_times_are_not_known() -> None:
    share = Share(StepShape(8, 64), 2, 3)
    assert Growth(fixed((8, 64), (32, 64)), LINE, share, 0, 250.0, is_bounded=True).most(20) == 3
    assert Growth(fixed((8, 64), (32, 64)), CostTable({}), share, 0, 250.0).most(20) == 3
    assert Growth(segmented(64, 64), CostTable({}), Share(StepShape(1, 64), 1, 0), 0, 250.0).most(20) == 0


def test_a_wider_variant_is_taken_only_where_the_pool_stays_as_it_is() -> None:
    costs = CostTable({StepShape(1, 96): 10.0, StepShape(8, 96): 12.0, StepShape(32, 64): 14.0})
    growth = Growth(fixed((1, 96), (8, 96), (32, 64)), costs, Share(StepShape(1, 96), 1, 0), 0, 250.0)
    assert growth.most(30) == 7
    assert growth.shape(1) == growth.shape(7) == StepShape(8, 96)
    assert (growth.milliseconds(0), growth.milliseconds(1)) == (10.0, 12.0)


def test_guesses_stretch_no_gap_beyond_the_longest() -> None:
    growth = Growth(segmented(64, 1024), LINE, Share(StepShape(1, 64), 1, 0), 0, max_gap_ms=38.0)
    assert growth.most(20) == 3
    slow = Growth(segmented(64, 1024), LINE, Share(StepShape(64, 64), 64, 0), 0, max_gap_ms=38.0)
    assert slow.most(20) == 0
