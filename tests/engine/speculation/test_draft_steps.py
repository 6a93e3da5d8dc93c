"""Steps of a draft model, by hand."""

import pytest

from engine.speculation.draft_steps import in_parts


@pytest.mark.parametrize(
    ("counts", "parts"),
    [
        ([], []),
        ([8], [slice(0, 1)]),
        ([3, 5, 1], [slice(0, 2), slice(2, 3)]),
        ([3, 6, 2, 1], [slice(0, 1), slice(1, 3), slice(3, 4)]),
        ([9, 1], [slice(0, 1), slice(1, 2)]),
    ],
)
def test_sequences_share_steps_in_their_order(counts: list[int], parts: list[slice]) -> None:
    """Eight rows in a step; one that wants more is alone."""
    assert in_parts(counts, 8) == parts
