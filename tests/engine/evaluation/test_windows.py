"""A text cut into windows: which tokens are read, and which of them are scored."""

from itertools import product

import pytest

from engine.evaluation.evaluate import cut

TEXT = tuple(range(100, 110))


def scored(context: int, stride: int, bos: tuple[int, ...] = ()) -> list[int]:
    return [token for window in cut(TEXT, context, stride, bos) for token in window.targets]


def test_side_by_side() -> None:
    windows = cut(TEXT, 4, 4)
    assert [window.tokens for window in windows] == [TEXT[:4], TEXT[4:8], TEXT[8:]]
    assert [window.inputs for window in windows] == [TEXT[:3], TEXT[4:7], TEXT[8:9]]
    assert [window.targets for window in windows] == [TEXT[1:4], TEXT[5:8], TEXT[9:]]


def test_overlapping_windows_score_each_token_once_with_its_past() -> None:
    windows = cut(TEXT, 6, 2)
    assert [window.tokens for window in windows] == [TEXT[:6], TEXT[2:8], TEXT[4:]]
    assert [window.targets for window in windows] == [TEXT[1:6], TEXT[6:8], TEXT[8:]]


def test_every_window_begins_as_the_model_wants() -> None:
    windows = cut(TEXT, 5, 5, (1,))
    assert [window.tokens for window in windows] == [(1, *TEXT[:4]), (1, *TEXT[4:8]), (1, *TEXT[8:])]
    assert scored(5, 5, (1,)) == list(TEXT)


@pytest.mark.parametrize("bos", [(), (1,)])
def test_no_token_is_scored_twice_and_none_forgotten(bos: tuple[int, ...]) -> None:
    for context, stride in product(range(2, 13), range(1, 13)):
        found = scored(context, stride, bos)
        assert found == sorted(set(found)), (context, stride)
        if bos:
            assert found == list(TEXT), (context, stride)
        elif stride < context:
            assert found == list(TEXT[1:]), (context, stride)
        for window in cut(TEXT, context, stride, bos):
            assert 1 <= window.first < len(window.tokens) <= context


def test_nothing_can_be_scored() -> None:
    assert cut((), 4, 4) == cut((7,), 4, 4) == []
    assert cut((), 4, 4, (1,)) == []
    assert [window.targets for window in cut((7,), 4, 4, (1,))] == [(7,)]


def test_a_last_token_that_stands_alone_is_left_out() -> None:
    assert scored(3, 3) == [101, 102, 104, 105, 107, 108]
