"""How many compilers run side by side."""

import pytest

from engine.compile.targets.npu import LARGEST_AT_ONCE, at_once


@pytest.mark.parametrize(
    ("largest", "jobs", "processors", "expected"),
    [
        (LARGEST_AT_ONCE // 2, 4, 8, 2),  # memory
        (1, 4, 8, 4),  # jobs
        (1, 4, 2, 2),  # processors
        (3 * LARGEST_AT_ONCE, 4, 8, 1),  # never none
        (0, 1, 1, 1),
    ],
)
def test_bounded_by_memory_jobs_and_processors(largest: int, jobs: int, processors: int, expected: int) -> None:
    assert at_once(largest, jobs, processors) == expected
