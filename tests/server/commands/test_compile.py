"""`hexserve compile`: its options, what they stand for, how it ends."""

import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.compile import __main__ as console
from engine.compile.arguments import CompileArguments, KvType, Layout, QualityLevel, Quant, Split, Target
from engine.compile.plan import check_arguments
from engine.demo.location import demo_folder
from engine.sources.publish import staged_folder
from server.commands.cli import app
from tests.command_line import compile_arguments


def test_defaults_of_the_command_line() -> None:
    device = compile_arguments(["s", "-o", "o", "--target", "x-elite", "--rows", "1,32", "--context", "1024"])
    assert (device.quant, device.share_weights, device.part_mb) == (Quant.W4, True, 2000)
    check_arguments(device)
    emulator = compile_arguments(
        ["s", "-o", "o", "--target", "x-elite", "--rows", "1", "--same-past", "96", "--one-graph-per-binary"]
    )
    assert not emulator.share_weights
    assert compile_arguments(["s", "-o", "o"]).quant is Quant.INT8
    assert compile_arguments(["s.gguf", "-o", "o"]).quant is Quant.KEEP
    assert compile_arguments(["s.gguf", "-o", "o", "--quant", "int4"]).quant is Quant.INT4


def test_no_option_is_the_record_s_default() -> None:
    """But for what depends on the source: the method, and whether it has codes to choose."""
    usual = CompileArguments(Path("s"), Path("o"), quant=Quant.INT8, quality=None)
    assert compile_arguments(["s", "-o", "o"]) == usual


def test_every_option_arrives() -> None:
    words = (
        "s --output o --target x2-elite --quant w4a16 --split none --block 128 --asymmetric --embedding 16 "
        "--head w8a16 --rows 8,1,8 --context 512, --max-context 100 --parity-tokens 9 --name n --one-graph-per-binary "
        "--part-mb 7 --calibration text --force --quality good"
    )
    assert compile_arguments(words.split()) == CompileArguments(
        source=Path("s"),
        output=Path("o"),
        target=Target.X2_ELITE,
        quant=Quant.W4A16,
        split=Split.NONE,
        block=128,
        asymmetric=True,
        embedding_bits=16,
        head=Quant.W8A16,
        rows=(1, 8),
        context=(512,),
        max_context=100,
        parity_tokens=9,
        name="n",
        share_weights=False,
        part_mb=7,
        calibration=Path("text"),
        force=True,
        quality=QualityLevel.GOOD,
    )
    segments = compile_arguments(["s", "-o", "o", "--layout", "segments"])
    assert (segments.layout, segments.split) == (Layout.SEGMENTS, None)
    assert segments.kv is None
    assert compile_arguments(["s", "-o", "o", "--kv", "int8"]).kv is KvType.INT8
    assert compile_arguments(["s", "-o", "o", "--rows", "1", "--same-past", "96,32"]).same_past == (32, 96)


def test_the_demo_is_checked_on_more_text() -> None:
    demo = compile_arguments(["demo", "-o", "o"])
    assert (demo.source, demo.name, demo.parity_tokens) == (demo_folder(), "demo", 800)
    named = compile_arguments(["demo", "-o", "o", "--name", "mine", "--parity-tokens", "5"])
    assert (named.name, named.parity_tokens) == ("mine", 5)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--block", "64"], "--block"),
        (["--embedding", "0"], "--embedding"),
        (["--quant", "int3"], "--quant"),
        (["--target", "tpu"], "--target"),
        (["--layout", "rows"], "--layout"),
        (["--kv", "int4"], "--kv"),
        (["--rows", "1,x"], "1,x"),
        (["--context", "wide"], "--context"),
        (["--share-weights", "--one-graph-per-binary"], "--share-weights"),
        (["--blok", "32"], "--blok"),
        (["another"], "another"),
    ],
)
def test_wrong_options(words: list[str], reason: str) -> None:
    result = CliRunner().invoke(app, ["compile", "s", "-o", "o", *words], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert reason in result.stderr


def test_an_output_is_needed() -> None:
    assert CliRunner().invoke(app, ["compile", "s"]).exit_code == 2


def test_options_that_contradict_are_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compile", str(tmp_path), "-o", str(tmp_path / "o"), "--rows", "1"])
    assert result.exit_code == 1
    assert result.stderr == "error: fixed variants need --rows together with --context or --same-past\n"


def test_a_bundle_or_a_sentence(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """0 and a bundle, or 1 and a sentence."""
    output = tmp_path / "bundle"
    words = [
        "compile",
        str(tiny_checkpoint),
        "-o",
        str(output),
        "--quant",
        "int8",
        "--rows",
        "8,1",
        "--same-past",
        "32",
    ]
    made = CliRunner().invoke(app, words)
    assert made.exit_code == 0
    assert {path.name for path in output.glob("ar*_1_of_2.onnx")} == {"ar1_cl33_1_of_2.onnx", "ar8_cl40_1_of_2.onnx"}
    assert "top-1" in made.stderr
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 1
    assert again.stderr == f"error: {output} exists already; --force replaces it\n"


def test_an_interruption(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(console, "compile_bundle", interrupt)
    result = CliRunner().invoke(app, ["compile", str(tmp_path), "-o", str(tmp_path / "o")])
    assert (result.exit_code, result.stderr) == (130, "interrupted; nothing was written\n")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_leaves_nothing(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    number = signal.Signals[name]

    def signalled(arguments: CompileArguments, _: object) -> None:
        with staged_folder(arguments.output, force=False) as folder:
            (folder / "half").touch()
            signal.raise_signal(number)

    before = signal.getsignal(number)
    monkeypatch.setattr(console, "compile_bundle", signalled)
    result = CliRunner().invoke(app, ["compile", str(tmp_path), "-o", str(tmp_path / "o")])
    assert (result.exit_code, result.stderr, list(tmp_path.iterdir())) == (128 + number, "", [])
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("command", "work"),
    [(("compile", "s", "-o", "o"), "compiling"), (("eval", "demo", "--text", "t"), "an evaluation")],
)
def test_without_onnx(command: tuple[str, ...], work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert result.stderr == f'error: {work} needs more packages: {sys.executable} -m pip install "hexserve[compile]"\n'


@pytest.mark.parametrize(("content", "reason"), [(b"text", "is not a GGUF file"), (b"GGUF\3\0\0\0", "it ends early")])
def test_a_gguf_file_that_is_none_ends_with_one_sentence(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    result = CliRunner().invoke(app, ["compile", str(tmp_path / "m.gguf"), "-o", str(tmp_path / "o")])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {tmp_path / 'm.gguf'}") and reason in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "o").exists()
