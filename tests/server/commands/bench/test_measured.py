"""The engine's counters out of /metrics, and gaps between tokens out of chunks."""

import pytest

from server.commands.bench.measured import FIGURES, between, read_metrics, token_gaps, total
from tests.server.commands.scripted_server import metrics_text


def test_difference_of_two_readings() -> None:
    before, after = read_metrics(metrics_text(2)), read_metrics(metrics_text(5))
    assert before is not None
    assert after is not None
    change = between(before.counters, after.counters)
    assert (change.steps, change.rows_used, change.prefix_hits) == (30, 120, 9)
    assert list(change.figures()) == list(FIGURES)
    assert list(change.figures().values()) == [4, 3, 1.25, 8, pytest.approx(0.1)]
    assert total([change, change]) == between(
        read_metrics(metrics_text(0)).counters, read_metrics(metrics_text(6)).counters
    )  # type: ignore[union-attr]
    assert total([]) is None


def test_models_are_added_and_unfinished_counted() -> None:
    text = metrics_text(1) + 'hexserve:steps_total{model_name="other"} 5\nvllm:num_requests_running 2\n'
    reading = read_metrics(text)
    assert reading is not None
    assert reading.counters.steps == 15
    assert reading.unfinished == 2


@pytest.mark.parametrize(
    "text", ["", "vllm:prompt_tokens_total 3\n", "<html>no metrics</html>", "hexserve:steps_total x\n"]
)
def test_what_is_no_hexserve(text: str) -> None:
    assert read_metrics(text) is None


def test_no_steps_no_ratio() -> None:
    reading = read_metrics(metrics_text(0))
    assert reading is not None
    assert reading.counters.figures() == dict.fromkeys(FIGURES)


def test_a_chunk_of_several_tokens_is_as_many_gaps() -> None:
    assert token_gaps([(1.0, 1), (1.3, 4), (1.5, 5)]) == pytest.approx([0.1, 0.1, 0.1, 0.2])
    assert token_gaps([(1.0, 0), (1.3, 0), (1.5, 0)]) == pytest.approx([0.3, 0.2])  # not told
    assert token_gaps([(1.0, 2), (1.5, 2)]) == pytest.approx([0.5])  # text without a token of its own
    assert token_gaps([(1.0, 1)]) == token_gaps([]) == ()
