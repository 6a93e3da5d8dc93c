"""`hexserve bench` as a user runs it."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from server.commands.cli import app
from tests.server.commands.scripted_server import Script, serving


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def test_one_server(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    with serving(Script()) as address:
        load = ["--clients", "1,2", "--requests-per-client", "2", "--shared-prefix", "30"]
        result = bench(address, *load, "--json", str(figures))
    assert result.exit_code == 0, result.output
    for title in ("Throughput and latency", "Inside the engine", "output tokens/s by clients", "warm / cold"):
        assert title in result.output
    assert re.search(r"(?m)^ +2 .* 4/0/0/0 *$", result.output)
    assert re.search(r"(?m)^ +2 +40 +4.00 +3.00 +1.25 +8.00 +10.0% +15.0% *$", result.output)
    document = json.loads(figures.read_text())
    assert [level["outcomes"]["ok"] for level in document["levels"]] == [2, 4]
    assert document["levels"][1]["useful_rows_per_step"] == 4
    assert len(document["turns"][1]["answers"]) == 4


def test_two_servers_side_by_side() -> None:
    scripts = Script(), Script(words=("One",))
    with serving(scripts[0]) as first, serving(scripts[1]) as second:
        result = bench(first, second, "--clients", "1", "--requests-per-client", "1", "--seed", "7")
    assert result.exit_code == 0, result.output
    assert re.findall(r"([AB]) 1 clients, round (\d)", result.output) == [
        ("A", "1"), ("B", "1"), ("A", "2"), ("B", "2"), ("A", "3"), ("B", "3")
    ]  # fmt: skip
    assert "seed 7" in result.output
    assert "Ratios to A, median of rounds side by side" in result.output


def test_prompts_as_token_ids() -> None:
    script = Script()
    with serving(script) as address:
        load = ["--clients", "1", "--requests-per-client", "2", "--shared-prefix", "20"]
        result = bench(address, *load, "--token-ids", "300", "--prompt-tokens", "12", "--rounds", "1")
    assert result.exit_code == 0, result.output
    lengths = [len(body["prompt"]) for body in script.bodies]
    assert lengths[-2:] == [12, 12] and lengths[-6:-2] == [32] * 4
    assert all(0 <= token < 300 for body in script.bodies for token in body["prompt"])


def test_failures_are_shown_and_set_the_status() -> None:
    preparing = ["ok"] * 4
    with serving(Script([*preparing, "busy", "midstream"])) as address:
        result = bench(address, "--clients", "1", "--requests-per-client", "3")
    assert result.exit_code == 1
    assert "1/1/0/1" in result.output
    assert "1 x the engine broke" in result.output
    assert "1 x HTTP 503: answer 503" in result.output


def test_a_prefix_that_fails_sets_the_status_too() -> None:
    with serving(Script([*["ok"] * 4, "broken"])) as address:
        result = bench(address, "--clients", "1", "--requests-per-client", "1", "--shared-prefix", "9")
    assert result.exit_code == 1
    assert "1 x HTTP 500: answer 500" in result.output


def test_refusals_alone_are_no_failure() -> None:
    with serving(Script(["ok"] * 3, then="busy", has_metrics=False)) as address:
        result = bench(address, "--clients", "2", "--requests-per-client", "1")
    assert result.exit_code == 0
    assert "0/0/0/2" in result.output
    assert "Inside the engine" not in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["ftp://somewhere"], 2, "'ftp://somewhere' is not an http address"),
        (["http://h", "--api-key", "ké"], 2, "the API key must be printable ASCII characters"),
        (["--clients", "1,x", "http://h"], 2, "--clients must be whole numbers"),
        (["--clients", "0", "http://h"], 2, "--clients must be at least 1"),
        (["--prompts", "nowhere.txt", "http://h"], 2, "prompts file nowhere.txt cannot be read"),
        (["--json", "/nowhere/x", "http://h"], 2, "--json /nowhere/x cannot be written: its folder does not exist"),
        (["http://127.0.0.1:9"], 1, "nothing answers at http://127.0.0.1:9"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], code: int, message: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == code
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1


def test_figures_that_cannot_be_written(tmp_path: Path) -> None:
    with serving(Script()) as address:
        result = bench(address, "--clients", "1", "--requests-per-client", "1", "--json", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr == f"error: --json {tmp_path} cannot be written: Is a directory\n"
    assert "Throughput and latency" in result.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_ctrl_c_prints_what_was_measured() -> None:
    script = Script(["ok"] * 6, then="hang")
    with serving(script) as address:
        arguments = ["bench", address, "--clients", "1,2", "--requests-per-client", "2"]
        with subprocess.Popen([sys.executable, "-m", "server", *arguments], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            seen = ""
            while "1 clients, round 1" not in seen:
                seen += child.stdout.readline()
            child.send_signal(signal.SIGINT)
            seen += child.stdout.read()
            assert child.wait(30) == 130
    assert "Stopped; this is what was measured:" in seen
    assert re.search(r"(?m)^ +1 .* 2/0/0/0 *$", seen)
    assert re.search(r"(?m)^ +2\* .* 0/0/0/0 *$", seen)
    assert "* stopped before all of its requests were answered" in seen
