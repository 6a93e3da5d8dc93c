"""A tiny checkpoint and bundles of it."""

from pathlib import Path

import pytest

from engine.compile.arguments import CompileArguments
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.random_checkpoint import SHAPES, write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 checkpoint of random weights."""
    folder = tmp_path_factory.mktemp("source") / "tiny"
    write_checkpoint(folder, SHAPES["tiny"])
    return folder


@pytest.fixture(scope="session")
def free_bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A free-shape bundle."""
    folder = tmp_path_factory.mktemp("bundles") / "free"
    compile_bundle(CompileArguments(checkpoint, folder), SilentProgress())
    return folder


@pytest.fixture(scope="session")
def fixed_bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of fixed variants."""
    folder = tmp_path_factory.mktemp("bundles") / "fixed"
    compile_bundle(CompileArguments(checkpoint, folder, rows=(1, 8), context=(64, 128)), SilentProgress())
    return folder
