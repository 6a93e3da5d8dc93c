"""NPU and CPU together, at published speeds: never clearly worse than the better of them alone."""

import pytest

from tools.simulate.both import BOTH_PROMPTS, MODEL, device_costs, play
from tools.simulate.load import SimulatedLoad
from tools.simulate.lone import both_processors
from tools.simulate.published import hub_figures


@pytest.mark.parametrize("prompt", BOTH_PROMPTS)
@pytest.mark.parametrize("clients", [1, 2, 8, 16])
def test_both_are_never_worse_than_the_better_one(prompt: int, clients: int) -> None:
    costs = device_costs([each for each in both_processors(hub_figures()) if each.model == MODEL])
    load = SimulatedLoad((0.0,) * clients, 2, prompt, 64)
    npu, cpu, both = play(costs, load)
    assert all(each.tokens == load.tokens for each in (npu, cpu, both))
    assert both.of_serial is not None and both.of_serial >= 0.97
    if prompt == 512 and clients <= 2:  # the NPU reads, the CPU writes
        assert both.of_serial >= 1.25
        assert both.first_token_mean_s < 1.3 * npu.first_token_mean_s < cpu.first_token_mean_s


def test_a_device_alone_has_its_published_rates() -> None:
    (one,) = [each for each in both_processors(hub_figures()) if (each.model, each.context) == (MODEL, 512)]
    npu, cpu, _ = play(device_costs([one]), SimulatedLoad((0.0,), 1, 128, 65))
    for found, rates in ((npu, one.npu), (cpu, one.cpu)):
        assert found.seconds == pytest.approx(128 / rates.prefill + 64 / rates.decode)
