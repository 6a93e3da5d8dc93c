"""NPU and CPU together: more numbers of clients."""

import pytest

from engine.client.placement import DeviceCosts
from tests.tools.simulate.test_both import costs
from tests.tools.simulate.test_both import test_both_are_never_worse_than_the_better_one as never_worse
from tests.tools.simulate.test_both import (
    test_where_they_gain_less_no_division_of_the_clients_gains_more as no_division_gains_more,
)
from tools.simulate.both import BOTH_PROMPTS

__all__ = ["costs"]
PROMPTS = pytest.mark.parametrize("prompt", BOTH_PROMPTS)


@PROMPTS
@pytest.mark.parametrize("clients", [3, 4, 6, 8, 12])
def test_both_are_never_worse(prompt: int, clients: int, costs: list[DeviceCosts]) -> None:
    never_worse(prompt, clients, costs)


@PROMPTS
@pytest.mark.parametrize("clients", [4, 8])
def test_no_division_of_the_clients_gains_more(
    prompt: int, clients: int, costs: list[DeviceCosts], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_division_gains_more(prompt, clients, costs, monkeypatch)
