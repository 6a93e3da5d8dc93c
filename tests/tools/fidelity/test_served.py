"""Which tokens are scored, and what the table says of a bar that is missed."""

import io

import pytest
from rich.console import Console

from engine.evaluation.evaluate import Interval, Quality
from tools.fidelity.__main__ import FileBeside, table_of
from tools.fidelity.served import ServedFile, second_halves
from tools.llama_cpp.figures import PrintedMean


def test_the_tokens_are_those_that_llama_perplexity_scores() -> None:
    """Behind the positions 4 to 6 of windows of 8; a window that is not full is left out."""
    windows = second_halves(range(20), 8)
    assert [window.tokens for window in windows] == [tuple(range(8)), tuple(range(8, 16))]
    assert [window.targets for window in windows] == [(5, 6, 7), (13, 14, 15)]


def test_every_window_begins_as_a_text_does() -> None:
    """llama-perplexity puts BOS before the text, and in the place of each window's first token."""
    windows = second_halves(range(20), 8, (99,))
    assert [window.tokens for window in windows] == [(99, *range(7)), (99, *range(8, 15))]


@pytest.mark.parametrize(("kl", "told"), [(0.0011, "1.10"), (0.0012, "1.20 (bar missed)")])
def test_a_row(kl: float, told: str) -> None:
    figure = Interval(kl, kl / 2, kl * 2)
    ours = ServedFile(Quality(8160, figure, figure, figure, figure, figure), "float32", 10)
    found = FileBeside("smollm2", "Q4_0", 0.001, PrintedMean(0.97, 0.01), ours)
    assert found.holds == ("missed" not in told)
    console = Console(file=io.StringIO(), width=200)
    console.print(table_of([found]))
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "smollm2 Q4_0" in drawn and "97.00 %" in drawn and told in drawn and "8,160" in drawn
