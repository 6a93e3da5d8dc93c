"""Other people's programs: what is built is used again, and what is missing is named. Nothing is built here."""

import sys
from pathlib import Path

import pytest

from tools.llama_cpp.programs import BuildFailed, LlamaCpp, run_step


def test_what_is_there_is_used_again(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir(parents=True)
    program.touch()
    assert LlamaCpp(tmp_path / "no tree", tmp_path, pytest.fail).program("llama-server") == program


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildFailed, match=r"needs a C\+\+ compiler"):
        LlamaCpp(tmp_path, tmp_path / "build", pytest.fail).program("llama-server")


def test_a_step_that_fails_is_named(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(BuildFailed, match=r"say no failed \(.*log.txt\): no"):
        run_step("say no", [sys.executable, "-c", "import sys; sys.exit('no')"], tmp_path / "log.txt", said.append)
    assert said == ["say no ..."]
