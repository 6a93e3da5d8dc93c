"""How long answers are expected to get, by hand."""

import pytest

from engine.core.kv_blocks import Sight
from engine.core.sequence import Capacity, OutputLengthEstimate, Sequence, room
from engine.request import Request, SamplingParams

CAPACITY = Capacity(256, 1000)
ALL = Sight(0, 16, 8)


def sequence(prompt: int, generated: int, max_tokens: int = 500) -> Sequence:
    request = Request("a", (1,) * prompt, SamplingParams(max_tokens=max_tokens))
    return Sequence(request, 0, 0, [1] * (prompt + generated))


def test_room_is_what_max_tokens_and_the_context_leave() -> None:
    assert room(sequence(10, 5, max_tokens=20), CAPACITY) == 15
    assert room(sequence(200, 5), CAPACITY) == 257 - 205


@pytest.mark.parametrize(
    ("prompt", "generated", "max_tokens", "blocks"),
    [
        (16, 0, 500, 7),  # 16 + 100 tokens, the newest of them without a column: 8 blocks, less one
        (16, 60, 500, 3),
        (16, 100, 500, 0),
        (16, 300, 500, 0),
        (16, 0, 17, 1),
        (16, 0, 0, 0),  # only scored
        (250, 0, 500, 0),  # the pool ends before
    ],
)
def test_growth(prompt: int, generated: int, max_tokens: int, blocks: int) -> None:
    assert OutputLengthEstimate(100, CAPACITY, ALL.held).growth(sequence(prompt, generated, max_tokens)) == blocks


def test_reserved() -> None:
    estimate = OutputLengthEstimate(100, CAPACITY, ALL.held)
    assert estimate.reserved(sequence(16, 0), []) == 0
    assert estimate.reserved(sequence(16, 0), [sequence(16, 60), sequence(16, 300)]) == 7 + 3 + 1
    assert OutputLengthEstimate(0, CAPACITY, ALL.held).reserved(sequence(16, 0), [sequence(16, 60)]) == 1


def test_it_follows_the_answers() -> None:
    estimate = OutputLengthEstimate(100, CAPACITY, ALL.held)
    estimate.observe(300)
    assert estimate.tokens == pytest.approx(110)
    for _ in range(200):
        estimate.observe(40)
    assert estimate.tokens == pytest.approx(40, abs=0.1)
    estimate.observe(0)  # refused or left before the first token
    assert estimate.tokens == pytest.approx(40, abs=0.1)
    nothing = OutputLengthEstimate(0, CAPACITY, ALL.held)
    nothing.observe(99)
    assert nothing.tokens == 0


def test_an_answer_at_its_end_gives_no_block_back() -> None:
    assert OutputLengthEstimate(100, CAPACITY, ALL.held).growth(sequence(17, 0, max_tokens=0)) == 0
    assert OutputLengthEstimate(1, CAPACITY, ALL.held).growth(sequence(1, 16)) == 0


def test_behind_a_window_an_answer_takes_no_more() -> None:
    """Rows that see 40 columns, in steps of 8: at most 4 blocks at once."""
    estimate = OutputLengthEstimate(100, CAPACITY, Sight(40, 16, 8).held)
    assert [estimate.growth(sequence(prompt, 0)) for prompt in (16, 33, 64, 200)] == [3, 1, 0, 0]
