"""What the user sees while compiling."""

import io

from rich.console import Console

from engine.compile.progress import RichProgress, rate_text


def test_rates() -> None:
    """Bytes become MB/s, other units keep their name, nothing is divided by zero."""
    assert rate_text(5e6, 2.0, "B") == "2.5 MB/s"
    assert rate_text(3, 2.0, "graphs") == "1.5 graphs/s"
    assert rate_text(3, 0.0, "graphs") == "" and rate_text(0, 1.0, "B") == ""


def test_a_log_file_gets_one_line_for_each_stage() -> None:
    """No terminal, no bars: a line when a stage is over, notes as they come."""
    stream = io.StringIO()
    with RichProgress(Console(file=stream, width=100)) as progress:
        progress.stage("weights", 10, "B")
        progress.advance(10)
        progress.stage("graphs", 2, "graphs")
        progress.note("a [note]")
    lines = [line.split()[0] for line in stream.getvalue().splitlines()]
    assert lines == ["weights", "a", "graphs"]
    assert "a [note]" in stream.getvalue()


def test_a_terminal_gets_bars_with_rates() -> None:
    """The bar carries its title and the rate."""
    stream = io.StringIO()
    with RichProgress(Console(file=stream, width=120, force_terminal=True)) as progress:
        progress.stage("weights", 10_000_000, "B")
        progress.advance(5_000_000)
        progress.advance(5_000_000)
    assert "weights" in stream.getvalue() and "MB/s" in stream.getvalue()
