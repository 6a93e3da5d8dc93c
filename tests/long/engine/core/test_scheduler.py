"""The scheduler over random arrivals, many more than the quick tests draw."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.core.test_scheduler import REQUEST, WORLDS, check_random


@pytest.mark.parametrize("world_name", WORLDS)
@given(requests=st.lists(REQUEST, min_size=1, max_size=9))
@settings(max_examples=100, deadline=None)
def test_random_arrivals_cancels_and_preemptions(world_name: str, requests: list[tuple[Any, ...]]) -> None:
    check_random(world_name, requests)
