"""The soak: its verdict on made-up samples, and the program itself against the embedded model."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def judge() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak_verdict", DEPLOY / "soak_verdict.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak_verdict"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def samples(judge: ModuleType, count: int = 80, **last: float) -> list[object]:
    """Flat ones, but for a growth from zero to `last` over the second half."""
    flat = {"memory": 300e6, "files": 40, "threads": 20, "processes": 3, "columns": 0}
    found = []
    for at in range(count):
        share = max(0.0, (at - count / 2) / (count / 2 - 1))
        found.append(
            judge.ProcessSample(at=float(at), **{key: value + share * last.get(key, 0) for key, value in flat.items()})
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
def test_each_growth_is_told_with_its_figures(judge: ModuleType, growth: dict[str, float], said: str | None) -> None:
    told = [text.replace(".0", "") for text in judge.verdict(samples(judge, **growth))]
    assert told == ([] if said is None else [said])


def test_a_short_run_is_judged_by_its_columns_only(judge: ModuleType) -> None:
    assert judge.verdict(samples(judge, 10, memory=900e6, files=99, threads=99)) == []
    assert len(judge.verdict(samples(judge, 10, columns=32))) == 1


def test_the_drawing_has_a_curve_for_each_and_a_mark_for_every_kill(judge: ModuleType) -> None:
    root = ElementTree.fromstring(judge.drawing(samples(judge), [10.0, 20.0], 99))
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert tags.count("polyline") == len(judge.CURVES) == 4
    assert tags.count("line") == 2 * len(judge.CURVES)


@pytest.mark.parametrize(("requests", "every"), [("150", "60"), pytest.param("2000", "200", marks=pytest.mark.long)])
def test_nothing_is_lost_and_nothing_grows(requests: str, every: str, tmp_path: Path) -> None:
    command = [sys.executable, str(DEPLOY / "soak.py"), "--requests", requests, "--kill-every", every]
    done = subprocess.run(
        [*command, "--minutes", "10", "--svg", str(tmp_path / "soak.svg")], capture_output=True, text=True, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"passed: {requests} requests, 0 lost" in done.stdout
    assert f"{(int(requests) - 1) // int(every)} kills of the worker" in done.stdout
    assert (tmp_path / "soak.svg").read_text().startswith("<svg")
