"""NPU and CPU together, at published speeds: never clearly worse than the better of them alone.

They are 1.25 times the better one where any division of the clients could be.
"""

from collections.abc import Iterator, Sequence

import pytest

from engine.client.placement import DeviceCosts, DeviceLoad
from tools.simulate import both as simulated
from tools.simulate.both import BOTH_PROMPTS, MODEL, device_costs, play
from tools.simulate.load import SimulatedLoad
from tools.simulate.lone import both_processors
from tools.simulate.published import hub_figures

AIM = 1.25
NEAR = 0.95  # of the best fixed division, which knows the whole load before


@pytest.fixture(scope="module")
def costs() -> list[DeviceCosts]:
    return device_costs([each for each in both_processors(hub_figures()) if each.model == MODEL])


def load(clients: int, prompt: int) -> SimulatedLoad:
    """As in the docs."""
    return SimulatedLoad((0.0,) * clients, 4, prompt, 128)


@pytest.mark.parametrize("prompt", BOTH_PROMPTS)
@pytest.mark.parametrize("clients", [1, 2, 5, 7, 16])
def test_both_are_never_worse_than_the_better_one(prompt: int, clients: int, costs: list[DeviceCosts]) -> None:
    npu, cpu, both = play(costs, load(clients, prompt))
    assert all(each.tokens == load(clients, prompt).tokens for each in (npu, cpu, both))
    assert both.of_serial is not None and both.of_serial >= 0.97
    if prompt == 512 and clients < 8:  # the NPU reads, the CPU writes
        assert both.of_serial >= AIM
        assert both.first_token_mean_s < 1.3 * npu.first_token_mean_s < cpu.first_token_mean_s


def divisions(clients: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Every fixed one: at most so many streams are on the CPU, for all of their lives or once the NPU has read them."""
    for most in range(clients + 1):

        def has_room(loads: Sequence[DeviceLoad], most: int = most) -> bool:
            return loads[1].streams + bool(loads[1].unread) < most

        def read(prompt: int, loads: Sequence[DeviceLoad], has_room: object = has_room) -> int:
            return int(has_room(loads))  # type: ignore[operator]

        def write(here: int, *rest: object, has_room: object = has_room) -> int:
            return 1 if here == 0 and has_room(rest[2]) else here  # type: ignore[operator]

        for reader, writer in ((read, lambda here, *_: here), (lambda *_: 0, write)):
            monkeypatch.setattr(simulated, "reader", reader)
            monkeypatch.setattr(simulated, "writer", writer)
            yield most


@pytest.mark.parametrize("prompt", BOTH_PROMPTS)
@pytest.mark.parametrize("clients", [2, 5])
def test_where_they_gain_less_no_division_of_the_clients_gains_more(
    prompt: int, clients: int, costs: list[DeviceCosts], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = play(costs, load(clients, prompt))[-1].of_serial
    found = [play(costs, load(clients, prompt))[-1].of_serial for _ in divisions(clients, monkeypatch)]
    best = max(ratio for ratio in found if ratio is not None)
    assert own is not None and own >= NEAR * best
    assert own >= AIM or best < AIM


def test_a_device_alone_has_its_published_rates() -> None:
    (one,) = [each for each in both_processors(hub_figures()) if (each.model, each.context) == (MODEL, 512)]
    npu, cpu, _ = play(device_costs([one]), SimulatedLoad((0.0,), 1, 128, 65))
    for found, rates in ((npu, one.npu), (cpu, one.cpu)):
        assert found.seconds == pytest.approx(128 / rates.prefill + 64 / rates.decode)
