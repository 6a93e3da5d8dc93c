"""`hexserve inspect` as a user runs it."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from server.commands.cli import app


def inspect(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["inspect", *arguments])


def test_whole_files_have_their_hashes(free_bundle: Path) -> None:
    result = inspect(str(free_bundle), "--check-hashes", "--graph", "free_1_of_2")
    assert result.exit_code == 0, result.output
    assert "sha256 of every file is the manifest's" in result.stdout
    assert "tensors of free_1_of_2" in result.stdout


def test_a_file_that_differs_fails(free_bundle: Path, tmp_path: Path) -> None:
    """Scripts read the exit code: a damaged bundle must not look whole."""
    damaged = tmp_path / "damaged"
    shutil.copytree(free_bundle, damaged)
    with (damaged / "part_2_of_2.data").open("r+b") as weights:
        first = weights.read(1)[0]
        weights.seek(0)
        weights.write(bytes([first ^ 1]))
    assert inspect(str(damaged)).exit_code == 0
    result = inspect(str(damaged), "--check-hashes")
    assert result.exit_code == 1
    assert result.stderr == "error: sha256 differs: part_2_of_2.data\n"


def test_the_cache_is_the_setting(monkeypatch: pytest.MonkeyPatch, free_bundle: Path) -> None:
    """A variable that serve would refuse is refused here too, not passed over."""
    monkeypatch.setenv("HEXSERVE_CACHEDIR", "/x")
    result = inspect(str(free_bundle))
    assert result.exit_code == 2
    assert result.stderr == (
        "error: unknown environment variable HEXSERVE_CACHEDIR; the nearest one is HEXSERVE_CACHE_DIR\n"
    )


def test_an_embedder_says_what_it_is(tiny_checkpoint: Path, tmp_path: Path) -> None:
    options = [
        "compile",
        str(tiny_checkpoint),
        "-o",
        str(tmp_path / "embedder"),
        "--task",
        "embed",
        "--quality",
        "fast",
    ]
    made = CliRunner().invoke(app, [*options, "--parity-tokens", "16"])
    assert made.exit_code == 0 and "cosine" in made.stderr + made.stdout
    shown = inspect(str(tmp_path / "embedder")).stdout
    assert "embed, 64 dimensions by the last token" in shown
    assert shown.count("cosine 0.9") == 1
