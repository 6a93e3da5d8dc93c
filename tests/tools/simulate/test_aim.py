"""The aim of the design on published step costs: 16 clients at 7 times the serial rate, no token gap above 0.5 s."""

import pytest

from tests.tools.simulate.playing import everyone, longest_gap, play, policies, rate
from tools.simulate.prices import Prices, fixed_table, lay_out
from tools.simulate.published import Published, find, price

X_ELITE = find("all", "x-elite")
SOME = X_ELITE[::4]  # the long tier has them all


@pytest.mark.parametrize("published", SOME, ids=[row.model for row in SOME])
def test_sixteen_clients_on_x_elite(published: Published) -> None:
    """A pool that holds them all: 16 x (128 + 96) of 3,968 slots."""
    times = price(published, lay_out((1, 32, 128), 4096, same_context=False))
    table = Prices(fixed_table(times), times, published.kv_bytes)
    load = everyone(16, 128, 96, requests=2)
    serial, fusion, ours = (play(policy, load, host_ms=2.0) for policy in policies(table).values())
    assert rate(ours) >= 7 * rate(serial)
    assert longest_gap(ours) <= 0.5
    assert rate(fusion) == pytest.approx(rate(serial), rel=0.02) and longest_gap(fusion) > 10


@pytest.mark.parametrize("published", SOME, ids=[row.model for row in SOME])
def test_sixteen_clients_whose_slots_do_not_fit_wait_before_they_begin_not_in_between(published: Published) -> None:
    """16 x (256 + 128) of 3,968 slots; 7 times is not reached by every model."""
    times = price(published, lay_out((1, 32, 128), 4096, same_context=False))
    table = Prices(fixed_table(times), times, published.kv_bytes)
    load = everyone(16, 256, 128, requests=4)
    found = policies(table)
    serial, ours = (play(found[name], load, host_ms=2.0) for name in ("serial", "continuous"))
    assert rate(ours) >= 6 * rate(serial)
    assert longest_gap(ours) <= 0.5
