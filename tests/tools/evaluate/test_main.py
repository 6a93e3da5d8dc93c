"""`python -m tools.evaluate`: its table, its files, and the sentences it ends with."""

import sys
from pathlib import Path

import pytest

from server.commands.own_server import ServerFailed, free_port
from tests.bundles import Bundles
from tools.evaluate import __main__ as command

Capture = pytest.CaptureFixture[str]


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: object) -> int:
    monkeypatch.setenv("HEXSERVE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.argv", ["evaluate", *map(str, words)])
    return command.main()


def test_no_lm_eval_and_one_that_fails(
    bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(command, "find_program", lambda python: ())
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, bundles("free"), "--tasks", "a")
    assert "--tasks needs lm-eval: pip install 'lm_eval[api]'" in capsys.readouterr().err
    monkeypatch.setattr(command, "find_program", lambda python: (sys.executable, "-c", "raise SystemExit(4)"))
    assert run(monkeypatch, tmp_path, bundles("free"), "--tasks", "a") == 1
    assert "error: lm-eval ended with status 4; what it said stands above" in capsys.readouterr().err


def test_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    for words, reason in (((), "there is nothing to do"), (("--svg", "f"), "--svg and --figures go together")):
        with pytest.raises(SystemExit):
            run(monkeypatch, tmp_path, "demo", *words)
        assert reason in capsys.readouterr().err


def test_a_server_that_does_not_say_its_model() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServerFailed, match=f"the server at {address} does not say which model it has"):
        command.served_model(address)
