"""Results come in the order of the items, a few at a time, and errors come where the result would."""

from collections.abc import Iterator

import pytest

from engine.compile.quantisation.weight_file import THREADS, ahead


def test_results_come_in_order() -> None:
    assert list(ahead(lambda number: number * number, range(100))) == [number * number for number in range(100)]


def test_items_are_read_a_few_ahead_and_no_more() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    results = ahead(lambda number: number, items())
    assert next(results) == 0
    assert len(read) == THREADS + 1
    results.close()  # type: ignore[attr-defined]


def test_an_error_comes_where_the_result_would() -> None:
    def inverse(number: int) -> float:
        return 1 / number

    results = ahead(inverse, [1, 0])
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
