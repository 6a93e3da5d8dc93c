"""The compiler in a process of its own: one argument, progress on stderr, exit codes."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.compile import __main__ as console
from engine.compile.__main__ import decode_arguments, main
from engine.compile.arguments import CompileArguments, KvType, Layout, Quant, Split, Target
from tests.engine.compile.arguments_json import encode_arguments


def test_arguments_survive_the_way() -> None:
    arguments = CompileArguments(
        Path("a b"), Path("/o"), Target.X2_ELITE, Quant.W4A16, Split.NONE, rows=(1, 8), calibration=Path("text")
    )
    assert decode_arguments(encode_arguments(arguments)) == arguments
    segments = CompileArguments(Path("s"), Path("o"), layout=Layout.SEGMENTS, kv=KvType.INT8)
    assert decode_arguments(encode_arguments(segments)) == segments


def test_a_bundle_or_a_sentence(tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = encode_arguments(CompileArguments(tiny_checkpoint, tmp_path / "out", quant=Quant.INT8))
    assert main([arguments]) == 0
    assert "top-1" in capsys.readouterr().err and (tmp_path / "out" / "manifest.json").is_file()
    assert main([arguments]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'out'} exists already; --force replaces it\n"


def test_what_has_a_default_may_be_left_out() -> None:
    assert decode_arguments('{"source": "s", "output": "o"}') == CompileArguments(Path("s"), Path("o"))


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["{"],
        ["{}"],
        ["{}", "{}"],
        ['{"source": 1, "output": "o"}'],
        ['{"source": "s", "output": "o", "qant": "w4"}'],
    ],
)
def test_other_arguments_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: python -m engine.compile takes") and captured.err.count("\n") == 1


# A signal comes while the head is written.
SIGNALLED = """
import os, signal, sys
from engine.compile.quantisation import packer as weights
from engine.compile.__main__ import main

weights.WeightPacker._head = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
sys.exit(main(["--end-with-input", sys.argv[1]]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process without asking it")
def test_sigterm_leaves_nothing(tiny_checkpoint: Path, tmp_path: Path) -> None:
    arguments = encode_arguments(CompileArguments(tiny_checkpoint, tmp_path / "out"))
    command = [sys.executable, "-c", SIGNALLED, arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM, told
    assert "Traceback" not in told and list(tmp_path.iterdir()) == []


def test_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(console, "compile_bundle", interrupt)
    assert main([encode_arguments(CompileArguments(tmp_path, tmp_path / "out"))]) == 130
    assert capsys.readouterr().err == "interrupted; nothing was written\n"
