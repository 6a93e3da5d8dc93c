"""`hexserve inspect` as a user runs it."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from engine.bundle.stored_times import StoredTimes, save_times, times_file
from server.commands.cli import app
from server.settings import costs_folder


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


def test_what_was_measured_is_shown(monkeypatch: pytest.MonkeyPatch, free_bundle: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("HEXSERVE_CACHE_DIR", str(tmp_path))
    assert "ms of a step" not in inspect(str(free_bundle)).stdout
    stored = StoredTimes(((1, 64, 2.5), (8, 64, 4.0), (1, 1024, 3.0)), "Oryon [12 cores]", 12, 4, "spinning")
    save_times(times_file(costs_folder(tmp_path), free_bundle), stored)
    shown = inspect(str(free_bundle)).stdout
    assert "ms of a step on Oryon [12 cores], 12 cores, 4 threads, spinning" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["rows", "past", "64", "past", "1,024"] in lines
    assert ["1", "2.5", "3.0"] in lines and ["8", "4.0"] in lines


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
