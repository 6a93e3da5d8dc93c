"""Which masked tokens a step settles: each rule on numbers by hand, and what holds for all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.block_diffusion import ActiveBlock, Prediction, scheduled, unmask
from engine.request import Denoising, Unmasking

SURE = [
    Prediction(7, confidence, entropy) for confidence, entropy in ((0.3, 2.0), (0.95, 0.3), (0.6, 0.2), (0.91, 0.9))
]


def settings(unmasking: Unmasking, steps: int = 4, threshold: float = 0.9, bound: float = 0.6) -> Denoising:
    return Denoising(4, 99, steps, unmasking, threshold, bound)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (settings(Unmasking.DYNAMIC_CONFIDENCE), [1, 3]),
        (settings(Unmasking.DYNAMIC_CONFIDENCE, threshold=0.91), [1]),  # above it, not at it
        (settings(Unmasking.DYNAMIC_CONFIDENCE, threshold=1.0), [1]),
        (settings(Unmasking.DYNAMIC_CONFIDENCE, threshold=0.0), [0, 1, 2, 3]),
        (settings(Unmasking.DYNAMIC_CONFIDENCE, threshold=1.0, steps=2), [1, 3]),
        (settings(Unmasking.STATIC_CONFIDENCE), [1]),
        (settings(Unmasking.STATIC_CONFIDENCE, steps=2), [1, 3]),
        (settings(Unmasking.STATIC_CONFIDENCE, steps=1), [0, 1, 2, 3]),
        (settings(Unmasking.SEQUENTIAL), [0]),
        (settings(Unmasking.SEQUENTIAL, steps=3), [0, 1]),
        (settings(Unmasking.ENTROPY_BOUND), [1, 2]),  # 0.2 + 0.3
        (settings(Unmasking.ENTROPY_BOUND, bound=0.1), [2]),
        (settings(Unmasking.ENTROPY_BOUND, bound=0.1, steps=2), [1, 2]),
        (settings(Unmasking.ENTROPY_BOUND, bound=50), [0, 1, 2, 3]),
    ],
)
def test_each_rule(chosen: Denoising, expected: list[int]) -> None:
    assert unmask(chosen, 0, SURE) == expected


def test_equals_go_by_position() -> None:
    equal = [Prediction(7, 0.5, 0.5)] * 3
    for rule in Unmasking:
        assert unmask(settings(rule, bound=0.0), 0, equal) == [0]


def test_the_schedule_gives_the_first_steps_one_more() -> None:
    seven = Denoising(7, 99, 3)
    assert [scheduled(seven, step) for step in range(3)] == [3, 2, 2]
    assert [scheduled(Denoising(8, 99, 8), step) for step in range(8)] == [1] * 8


@given(
    st.sampled_from(list(Unmasking)),
    st.integers(1, 12).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size), st.integers(0, size - 1))),
    st.floats(0, 1),
    st.floats(0, 5),
    st.randoms(use_true_random=False),
)
def test_every_block_ends_in_its_steps(
    rule: Unmasking, sizes: tuple[int, int, int], threshold: float, bound: float, random: object
) -> None:
    """Whatever a step says. What is settled stays as it was chosen, and the mask token stands for the rest."""
    size, steps, known = sizes
    block = ActiveBlock(Denoising(size, 99, steps, rule, threshold, bound), known)
    row = block.row_tokens([5] * known)
    while block.masked:
        assert row.count(99) == len(block.masked) and len(row) == size
        said = [Prediction(random.randrange(50), random.random(), 3 * random.random()) for _ in block.masked]  # type: ignore[attr-defined]
        block.take(said)
        after = block.row_tokens([5] * known)
        assert all(old in (99, new) for old, new in zip(row, after, strict=True)) and after != row
        assert [found.token for found in block.leading] == list(after[known : after.index(99) if 99 in after else size])
        row = after
    assert block.step <= steps
    block.begin(0)
    assert block.masked == tuple(range(size)) and block.step == 0
