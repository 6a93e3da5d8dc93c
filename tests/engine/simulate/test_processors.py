"""When a lone stream is better off on the CPU."""

import pytest

from engine.simulate.processors import LONE, LoneRates, Processors


def test_the_answer_from_which_both_take_as_long() -> None:
    both = Processors("m", 512, LoneRates(10.0, 1000.0), LoneRates(20.0, 100.0))
    tokens = both.break_even(100)
    assert tokens == pytest.approx(19.0)  # 0.9 s of prompt are won back at 0.05 s a token
    assert both.npu.seconds(100, 19) == pytest.approx(both.cpu.seconds(100, 19))


def test_a_cpu_that_decodes_more_slowly_never_wins() -> None:
    assert [each.break_even(256) is None for each in LONE] == [each.context == 4096 for each in LONE]
