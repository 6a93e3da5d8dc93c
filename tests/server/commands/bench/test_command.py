"""`hexserve bench` as a user runs it."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from server.commands.bench.command import bench
from server.commands.bench.report import bar
from server.commands.bench.target import Unreachable, may_use_proxy, root_address
from tests.server.commands.bench.scripted_server import Script, serving

app = typer.Typer()
app.command()(bench)


def test_one_server(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    with serving(Script()) as address:
        result = CliRunner().invoke(
            app,
            [
                address,
                "--clients",
                "1,2",
                "--requests-per-client",
                "2",
                "--shared-prefix",
                "30",
                "--json",
                str(figures),
            ],
        )
    assert result.exit_code == 0, result.output
    for title in ("Throughput and latency", "Inside the engine", "output tokens/s by clients", "warm / cold"):
        assert title in result.output
    assert re.search(r"(?m)^ +2 .* 4/0/0/0 *$", result.output)
    assert re.search(r"(?m)^ +2 +40 +4.00 +3.00 +8.00 +10.0% +15.0% *$", result.output)
    document = json.loads(figures.read_text())
    assert [level["outcomes"]["ok"] for level in document["levels"]] == [2, 4]
    assert document["levels"][1]["useful_rows_per_pass"] == 4
    assert len(document["turns"][1]["answers"]) == 4


def test_two_servers_side_by_side() -> None:
    scripts = Script(), Script(words=("One",))
    with serving(scripts[0]) as first, serving(scripts[1]) as second:
        result = CliRunner().invoke(app, [first, second, "--clients", "1", "--requests-per-client", "1", "--seed", "7"])
    assert result.exit_code == 0, result.output
    assert re.findall(r"([AB]) 1 clients, round (\d)", result.output) == [
        ("A", "1"), ("B", "1"), ("A", "2"), ("B", "2"), ("A", "3"), ("B", "3")
    ]  # fmt: skip
    assert "seed 7" in result.output
    assert "Ratios to A, median of rounds side by side" in result.output


def test_failures_are_shown_and_set_the_status() -> None:
    calibration = ["ok"] * 3
    with serving(Script([*calibration, "busy", "midstream"])) as address:
        result = CliRunner().invoke(app, [address, "--clients", "1", "--requests-per-client", "3"])
    assert result.exit_code == 1
    assert "1/1/0/1" in result.output
    assert "1 x the engine broke" in result.output
    assert "1 x HTTP 503: answer 503" in result.output


def test_refusals_alone_are_no_failure() -> None:
    with serving(Script(["ok"] * 3, then="busy", has_metrics=False)) as address:
        result = CliRunner().invoke(app, [address, "--clients", "2", "--requests-per-client", "1"])
    assert result.exit_code == 0
    assert "0/0/0/2" in result.output
    assert "Inside the engine" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ftp://somewhere"], "'ftp://somewhere' is not an http address"),
        (["--clients", "1,x", "http://h"], "--clients must be whole numbers"),
        (["--clients", "0", "http://h"], "--clients must be at least 1"),
        (["--prompts", "nowhere.txt", "http://h"], "nowhere.txt cannot be read"),
        (["http://127.0.0.1:9"], "nothing answers at http://127.0.0.1:9"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/v1/", "http://h:1"),
        ("h:1/v1", "http://h:1"),
        ("https://h/api/v1", "https://h/api"),
    ],
)
def test_addresses(url: str, address: str) -> None:
    assert root_address(url) == address


def test_no_address() -> None:
    with pytest.raises(Unreachable):
        root_address("http://")


def test_proxies_only_for_others() -> None:
    hosts = {"127.0.0.1:8": False, "localhost": False, "[::1]:8": False, "10.0.0.1": True, "h.org": True}
    assert {host: may_use_proxy(f"http://{host}") for host in hosts} == hosts


def test_bars() -> None:
    assert bar(10, 10, 4) == "████"
    assert bar(5.5, 10, 4) == "██▎"
    assert bar(0, 0, 4) == ""
    assert bar(5.5, 10, 4, is_plain=True) == "##"


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_ctrl_c_prints_what_was_measured() -> None:
    script = Script(["ok"] * 5, then="hang")
    start = "import typer; from server.commands.bench.command import bench; typer.run(bench)"
    with serving(script) as address:
        arguments = [address, "--clients", "1,2", "--requests-per-client", "2"]
        with subprocess.Popen([sys.executable, "-c", start, *arguments], stdout=subprocess.PIPE, text=True) as child:
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
