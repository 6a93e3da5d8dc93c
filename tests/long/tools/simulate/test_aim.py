"""The aim of the design on every published model."""

import pytest

from tests.tools.simulate.test_aim import X_ELITE
from tests.tools.simulate.test_aim import test_sixteen_clients_on_x_elite as sixteen
from tests.tools.simulate.test_aim import (
    test_sixteen_clients_whose_slots_do_not_fit_wait_before_they_begin_not_in_between as sixteen_that_do_not_fit,
)
from tools.simulate.published import Published

ALL = pytest.mark.parametrize("published", X_ELITE, ids=[row.model for row in X_ELITE])


@ALL
def test_sixteen_clients(published: Published) -> None:
    sixteen(published)


@ALL
def test_sixteen_clients_whose_slots_do_not_fit(published: Published) -> None:
    sixteen_that_do_not_fit(published)
