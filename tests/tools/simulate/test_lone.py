"""When a lone stream is better off on the CPU."""

import pytest

from tools.simulate.lone import LoneRates, Processors, both_processors
from tools.simulate.published import HubFigures, HubSpeed


def test_the_answer_from_which_both_take_as_long() -> None:
    both = Processors("m", 512, LoneRates(10.0, 1000.0), LoneRates(20.0, 100.0))
    tokens = both.break_even(100)
    assert tokens == pytest.approx(19.0)  # 0.9 s of prompt are won back at 0.05 s a token
    assert both.npu.seconds(100, 19) == pytest.approx(both.cpu.seconds(100, 19))


def test_a_cpu_that_decodes_more_slowly_never_wins() -> None:
    assert Processors("m", 4096, LoneRates(13.0, 900.0), LoneRates(7.0, 95.0)).break_even(256) is None


def test_a_model_and_context_with_a_rate_on_both() -> None:
    speeds = (
        HubSpeed("m", "x-elite", "npu", "geniex_qairt", "w4a16", 512, 64.0, 40.0),
        HubSpeed("m", "x-elite", "npu", "genie", "w4a16", 512, 32.0, 4.0),
        HubSpeed("m", "x-elite", "npu", "geniex_qairt", "w4a16", 4096, 90.0, 20.0),
        HubSpeed("m", "x-elite", "cpu", "geniex_llamacpp", "q4_0", 512, 640.0, 50.0),
        HubSpeed("m", "x2-elite", "npu", "geniex_qairt", "w4a16", 512, 50.0, 90.0),
    )
    expected = Processors("m", 512, LoneRates(40.0, 2000.0), LoneRates(50.0, 200.0))
    assert both_processors(HubFigures("package", "1", {}, speeds)) == (expected,)
