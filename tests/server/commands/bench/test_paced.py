"""`hexserve bench --paced`: the arithmetic of its table, and what it cannot be combined with."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from engine.bundle.variant import PassShape
from engine.simulate.host_times import parse_host_times
from engine.simulate.published import named, price
from server.commands.bench.paced import CASES, HostFigures, PacedSession, host_figures, host_table, paced_seconds
from server.commands.bench.prompts import PromptSource
from server.commands.bench.rounds import BenchLoad, BenchTurn, TurnRecord
from server.commands.bench.scrape import ScrapedCounters
from server.commands.cli import app

LLAMA = named("x-elite/LLAMA-3.2-3B")


def counted(passes: float, rows_used: float, rows_run: float) -> ScrapedCounters:
    return ScrapedCounters(passes, rows_used, rows_run, 0, 0, 0, 0, 0, 0, 0)


def test_passes_and_rows_say_what_all_passes_took() -> None:
    shapes = [PassShape(rows, 3968) for rows in (1, 1, 1, 32, 32, 128)]
    times = price(LLAMA, shapes)
    together = sum(times[shape] for shape in shapes) / 1000
    assert paced_seconds(counted(6, 40, 195), LLAMA) == pytest.approx(together)


def test_the_figures_of_a_case() -> None:
    record = TurnRecord(BenchTurn(1, 0, 0), seconds=10.0, counters=counted(100, 150, 100))
    found = host_figures(CASES[0], record, LLAMA)
    assert found is not None and found.rows_per_pass == 1.5
    assert found.share == pytest.approx(100 / 11.87 / 10)
    assert found.host_ms == pytest.approx(100 - 1000 / 11.87)
    assert host_figures(CASES[0], TurnRecord(BenchTurn(1, 0, 0)), LLAMA) is None


def test_the_cases_are_those_of_the_bars() -> None:
    assert [(case.clients, case.title.split(",")[-1].strip()) for case in CASES] == [
        (1, "greedy"),
        (16, "greedy"),
        (16, "top-p 0.9"),
        (16, "top-k 40"),
        (16, "json_schema"),
    ]


def test_the_table_and_the_file_that_simulate_reads(tmp_path: Path) -> None:
    figures = [HostFigures("greedy", 1, 100, 1.5, 8.4, 8.6), HostFigures("greedy", 16, 100, 16.5, 9.2, 9.6)]
    console = Console(record=True, width=80)
    console.print(host_table(LLAMA, figures))
    text = console.export_text()
    assert "97.7%" in text and "95.8%" in text and "4.00" in text and "…" not in text
    session = PacedSession(console, LLAMA, PromptSource(1, 64), BenchLoad((1,), 1, 8, 1))
    session._write(tmp_path / "host.json", figures)
    content = (tmp_path / "host.json").read_bytes()
    points = parse_host_times(content, "").points
    assert [rows for rows, _ in points] == [1.5, 16.5]
    assert [milliseconds for _, milliseconds in points] == pytest.approx([2.0, 4.0])
    assert json.loads(content)["paced"] == LLAMA.title


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["x-elite/none"], "'x-elite/none' has no published pass times; known are x-elite/llama-3.2-1b, "),
        (["x-elite/llama-3.2-3b", "http://127.0.0.1:1"], "leave out URLs, --bundle, --prompts"),
        (["x-elite/llama-3.2-3b", "--bundle", "mine"], "leave out URLs, --bundle, --prompts"),
        (["x-elite/llama-3.2-3b", "--profile"], "runs its cases once each: leave out --profile, --markdown, "),
        (["x-elite/llama-3.2-3b", "--rounds", "2"], "runs its cases once each: leave out --profile, --markdown, "),
        (["x-elite/llama-3.2-3b", "--clients", "4,8"], "--paced has cases of 1 and 16 clients"),
    ],
)
def test_a_users_mistake_is_one_sentence(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["bench", "--paced", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --") and told in result.stderr and result.stderr.count("\n") == 1
