"""`hexserve export-blocks`: its options, what it says and how it ends."""

import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.compile.arguments import ExportArguments
from engine.compile.graphs import block_export as export
from engine.sources.publish import staged_folder
from server.commands.cli import app
from tests.engine.compile.graphs.block_export.eager import write_block_checkpoint
from tools.block_loop import load_export


def test_a_checkpoint_is_exported(tmp_path: Path) -> None:
    source, output = write_block_checkpoint(tmp_path / "source"), tmp_path / "out"
    words = ["export-blocks", str(source), str(output), "--block", "8", "--context", "32", "--batch", "2"]
    done = CliRunner().invoke(app, [*words, "--backend", "cpu", "--quant", "int8", "--shared-masks"])
    assert done.exit_code == 0, done.output
    made = load_export(output)
    assert (made.block, made.context, made.batch, made.backend, made.quant) == (8, 32, 2, "cpu", "int8")
    assert made.mask_layers == 1
    # 2 layers, keys and values, 2 sequences, 2 heads of 16, 32 columns of 4 bytes.
    assert "the cache takes 0.0 MB" in done.output
    assert "no mask token" not in done.output


def test_who_cannot_denoise_is_told(tmp_path: Path) -> None:
    source = write_block_checkpoint(tmp_path / "source", mask_token_id=None)
    done = CliRunner().invoke(app, ["export-blocks", str(source), str(tmp_path / "out"), "--context", "32"])
    assert done.exit_code == 0, done.output
    assert "names no mask token, so it cannot denoise" in " ".join(done.output.split())


def test_what_cannot_be_exported_ends_with_one_sentence(tmp_path: Path) -> None:
    source = write_block_checkpoint(tmp_path / "source")
    done = CliRunner().invoke(app, ["export-blocks", str(source), str(tmp_path / "out"), "--context", "2"])
    assert done.exit_code == 1
    assert "error: --context must be from 4, one block, to 128" in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_sigterm_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def signalled(arguments: ExportArguments, _: object) -> None:
        with staged_folder(arguments.output, force=False):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(export, "export_blocks", signalled)
    done = CliRunner().invoke(app, ["export-blocks", "demo-diffusion", str(tmp_path / "out")])
    assert (done.exit_code, list(tmp_path.iterdir())) == (128 + signal.SIGTERM, [])


def test_an_unknown_backend_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export-blocks", "s", str(tmp_path / "out"), "--backend", "xnnpack"])
    assert done.exit_code == 2
    assert "xnnpack" in done.output
