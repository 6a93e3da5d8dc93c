"""The soak: its verdict on made-up samples."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.soak.verdict import ProcessSample, verdict

ROOT = Path(__file__).parents[3]


def samples(count: int = 80, **last: float) -> list[ProcessSample]:
    """Flat ones, but for a growth from zero to `last` over the second half."""
    flat = {"memory": 300e6, "files": 40, "threads": 20, "processes": 3, "columns": 0}
    found = []
    for at in range(count):
        share = max(0.0, (at - count / 2) / (count / 2 - 1))
        found.append(
            ProcessSample(at=float(at), **{key: value + share * last.get(key, 0) for key, value in flat.items()})  # type: ignore[arg-type]
        )
    return found


@pytest.mark.parametrize(
    ("growth", "said"),
    [
        ({}, None),
        ({"memory": 40e6}, None),
        ({"memory": 160e6}, "memory grew from 300 MB (second quarter) to 421 MB (last quarter)"),
        ({"files": 9}, "open files grew from 40 to 49"),
        ({"files": 8}, None),
        ({"threads": 9}, "threads grew from 20 to 29"),
        ({"columns": 16}, "16 columns are in use though nothing runs"),
        ({"processes": 2, "memory": 160e6, "files": 32, "threads": 18}, None),
        ({"processes": 1, "files": 21}, "open files grew from 40 to 61"),
        ({"processes": 8}, "there were 11 processes, at most 10 are expected"),
    ],
)
def test_each_growth_is_told_with_its_figures(growth: dict[str, float], said: str | None) -> None:
    told = [text.replace(".0", "") for text in verdict(samples(**growth))]
    assert told == ([] if said is None else [said])


def test_a_short_run_is_judged_by_its_columns_only() -> None:
    assert verdict(samples(10, memory=900e6, files=99, threads=99)) == []
    assert len(verdict(samples(10, columns=32))) == 1


def check(requests: str, every: str) -> None:
    """The program itself; only the long tier has the time."""
    command = [sys.executable, "-m", "tools.soak", "--requests", requests, "--kill-every", every]
    command += ["--minutes", "10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"passed: {requests} requests, 0 lost" in done.stdout
    assert f"{(int(requests) - 1) // int(every)} kills of the worker" in done.stdout
