"""Who is unloaded: by hand, and for any mix of models."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from server.models.models import ModelState, ServedModel, fits, idle, left_s, next_idle_s, to_unload, to_yield
from server.settings import Settings


def served(
    name: str, size: int, used_at_s: float, may_go: bool, is_going: bool = False, keep_s: float | None = None
) -> ServedModel:
    made = ServedModel(Settings(EngineConfig("unused"), model_name=name))
    made.move(ModelState.UNLOADING if is_going else ModelState.READY)
    made.size, made.used_at_s, made.pins, made.keep_s = size, used_at_s, int(not may_go), keep_s
    return made


def names(models: Iterable[ServedModel] | None) -> tuple[str, ...] | None:
    return None if models is None else tuple(model.name for model in models)


A = served("a", 30, used_at_s=1.0, may_go=True)
B = served("b", 30, used_at_s=3.0, may_go=True)
C = served("c", 30, used_at_s=2.0, may_go=True)
BUSY = served("busy", 30, used_at_s=0.0, may_go=False)
GOING = served("going", 30, used_at_s=0.0, may_go=False, is_going=True)


def test_the_least_recently_used_go_first_and_no_more_than_needed() -> None:
    assert names(to_unload([A, B, C], 10, 100)) == ()
    assert names(to_unload([A, B, C], 11, 100)) == ("a",)
    assert names(to_unload([A, B, C], 41, 100)) == ("a", "c")
    assert names(to_unload([A, B, C], 100, 100)) == ("a", "c", "b")


def test_what_is_busy_stays_and_then_nothing_goes_in_vain() -> None:
    assert names(to_unload([BUSY, A], 70, 100)) == ("a",)
    assert to_unload([BUSY, A], 71, 100) is None
    assert to_unload([], 101, 100) is None


def test_what_is_going_is_waited_for_before_another_one_has_to_go() -> None:
    assert names(to_unload([GOING, A], 70, 100)) == ()
    assert not fits([GOING, A], 70, 100)
    assert fits([A], 70, 100)


def test_without_a_budget_everything_fits() -> None:
    assert names(to_unload([A, BUSY], 10**15, 0)) == ()
    assert fits([A, BUSY], 10**15, 0)


def test_who_yields_is_who_would_have_to_go_whether_in_use_or_not() -> None:
    assert set(to_yield([A, B, C, BUSY], 0, 40, 150)) == {BUSY}
    assert set(to_yield([A, B, C, BUSY], 0, 41, 130)) == {BUSY, A}
    assert to_yield([A, B], 30, 40, 130) == []
    assert set(to_yield([A, B], 31, 40, 130)) == {A}


def test_idle_is_who_was_not_used_for_so_long() -> None:
    assert names(idle([A, B, C, BUSY], 12.0, 10.0)) == ("a", "c")
    assert names(idle([BUSY], 1e9, 10.0)) == ()
    assert next_idle_s([A, B, C, BUSY], 5.0, 10.0) == 6.0
    assert next_idle_s([A], 100.0, 10.0) == 0.0
    assert next_idle_s([BUSY], 5.0, 10.0) is None


def test_a_model_that_says_how_long_it_stays() -> None:
    at_once, ever, long = (served("a", 30, 1.0, True, keep_s=keep_s) for keep_s in (0.0, -1.0, 60.0))
    assert names(idle([at_once, served("c", 30, 2.0, True, keep_s=-1.0), B], 5.0, 0.0)) == ("a",)
    assert names(idle([ever], 1e9, 10.0)) == ()
    assert (idle([long], 60.9, 10.0), idle([long], 61.0, 10.0)) == ([], [long])
    assert next_idle_s([long, B], 5.0, 10.0) == 8.0
    assert next_idle_s([ever, C], 5.0, 0.0) is None
    assert left_s(served("busy", 30, 0.0, False, keep_s=60.0), 5.0, 10.0) == 60.0
    assert left_s(A, 5.0, 0.0) is None


loaded = st.lists(
    st.builds(served, st.uuids().map(str), st.integers(0, 100), st.floats(0, 9), st.booleans()), max_size=8
)


@given(loaded, st.integers(0, 300), st.integers(1, 300))
def test_what_goes_makes_room_and_nobody_could_have_stayed(found: list[ServedModel], needed: int, budget: int) -> None:
    going = to_unload(found, needed, budget)
    if going is None:
        assert not fits([model for model in found if not model.may_go], needed, budget)
        return
    staying = [model for model in found if model not in going]
    assert all(model.may_go for model in going)
    assert fits(staying, needed, budget)
    if going:
        assert not fits([*staying, going[-1]], needed, budget)
