"""The run that the Dockerfile makes in its builder: it must notice a server that does not answer."""

import os
import sys
from pathlib import Path

import pytest

from tests.deploy.test_check_wheels import load


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXSERVE_CACHE_DIR", str(tmp_path / "cache"))


def command(folder: Path, body: str) -> str:
    """A program that stands for the installed `hexserve`."""
    program = folder / "hexserve"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.skipif(os.name == "nt", reason="the image is built on Linux")
@pytest.mark.usefixtures("cache")
def test_a_server_that_answers_and_stops_passes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    real = command(tmp_path, f'exec "{sys.executable}" -m server "$@"')
    assert load("first_run").main(real, "demo") == 0
    answers = capfd.readouterr().out.splitlines()
    assert len(answers) == 3
    assert "Paris" in answers[0]
    assert answers[1].startswith("data: ")
    assert '\\"city\\"' in answers[2]


@pytest.mark.skipif(os.name == "nt", reason="the image is built on Linux")
def test_a_server_that_does_not_start_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert load("first_run").main(command(tmp_path, "echo error: no such bundle; exit 2"), "nothing") == 1
    assert "ended before it listened" in capsys.readouterr().err
