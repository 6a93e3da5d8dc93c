"""Who is unloaded: by hand, and for any mix of models."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from server.models.models import Resident, fits, idle, left_s, next_idle_s, to_unload, to_yield

A = Resident("a", 30, used_at_s=1.0, may_go=True)
B = Resident("b", 30, used_at_s=3.0, may_go=True)
C = Resident("c", 30, used_at_s=2.0, may_go=True)
BUSY = Resident("busy", 30, used_at_s=0.0, may_go=False)
GOING = Resident("going", 30, used_at_s=0.0, may_go=False, is_going=True)


def test_the_least_recently_used_go_first_and_no_more_than_needed() -> None:
    assert to_unload([A, B, C], 10, 100) == ()
    assert to_unload([A, B, C], 11, 100) == ("a",)
    assert to_unload([A, B, C], 41, 100) == ("a", "c")
    assert to_unload([A, B, C], 100, 100) == ("a", "c", "b")


def test_what_is_busy_stays_and_then_nothing_goes_in_vain() -> None:
    assert to_unload([BUSY, A], 70, 100) == ("a",)
    assert to_unload([BUSY, A], 71, 100) is None
    assert to_unload([], 101, 100) is None


def test_what_is_going_is_waited_for_before_another_one_has_to_go() -> None:
    assert to_unload([GOING, A], 70, 100) == ()
    assert not fits([GOING, A], 70, 100)
    assert fits([A], 70, 100)


def test_without_a_budget_everything_fits() -> None:
    assert to_unload([A, BUSY], 10**15, 0) == ()
    assert fits([A, BUSY], 10**15, 0)


def test_who_yields_is_who_would_have_to_go_whether_in_use_or_not() -> None:
    assert to_yield([A, B, C, BUSY], 0, 40, 150) == {"busy"}
    assert to_yield([A, B, C, BUSY], 0, 41, 130) == {"busy", "a"}
    assert to_yield([A, B], 30, 40, 130) == frozenset()
    assert to_yield([A, B], 31, 40, 130) == {"a"}


def test_idle_is_who_was_not_used_for_so_long() -> None:
    assert idle([A, B, C, BUSY], 12.0, 10.0) == ("a", "c")
    assert idle([BUSY], 1e9, 10.0) == ()
    assert next_idle_s([A, B, C, BUSY], 5.0, 10.0) == 6.0
    assert next_idle_s([A], 100.0, 10.0) == 0.0
    assert next_idle_s([BUSY], 5.0, 10.0) is None


def test_a_model_that_says_how_long_it_stays() -> None:
    at_once, ever, long = (replace(A, keep_s=keep_s) for keep_s in (0.0, -1.0, 60.0))
    assert idle([at_once, replace(C, keep_s=-1.0), B], 5.0, 0.0) == ("a",)
    assert idle([ever], 1e9, 10.0) == ()
    assert (idle([long], 60.9, 10.0), idle([long], 61.0, 10.0)) == ((), ("a",))
    assert next_idle_s([long, B], 5.0, 10.0) == 8.0
    assert next_idle_s([ever, C], 5.0, 0.0) is None
    assert left_s(replace(BUSY, keep_s=60.0), 5.0, 10.0) == 60.0
    assert left_s(A, 5.0, 0.0) is None


residents = st.lists(
    st.builds(Resident, st.uuids().map(str), st.integers(0, 100), st.floats(0, 9), st.booleans()), max_size=8
)


@given(residents, st.integers(0, 300), st.integers(1, 300))
def test_what_goes_makes_room_and_nobody_could_have_stayed(found: list[Resident], needed: int, budget: int) -> None:
    names = to_unload(found, needed, budget)
    staying = [resident for resident in found if names is None or resident.name not in names]
    if names is None:
        assert not fits([resident for resident in found if not resident.may_go], needed, budget)
        return
    assert all(resident.may_go for resident in found if resident.name in names)
    assert fits(staying, needed, budget)
    if names:
        last = next(resident for resident in found if resident.name == names[-1])
        assert not fits([*staying, last], needed, budget)
