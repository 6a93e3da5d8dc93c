"""A tiny checkpoint and bundles of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.bundle.manifest import Manifest
from engine.compile.arguments import CompileArguments, KvType, Layout
from engine.compile.calibration.documents import samples
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from tools.random_checkpoint import SHAPES, write_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 checkpoint of random weights."""
    folder = tmp_path_factory.mktemp("source") / "tiny"
    write_checkpoint(folder, SHAPES["tiny"])
    return folder


@pytest.fixture(scope="session")
def free_bundle(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A free-shape bundle of pool graphs."""
    folder = tmp_path_factory.mktemp("bundles") / "free"
    compile_bundle(CompileArguments(tiny_checkpoint, folder, layout=Layout.POOL), SilentProgress())
    return folder


@pytest.fixture(scope="session")
def segmented_bundle(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of linear graphs in two storages and an attention graph over float caches."""
    folder = tmp_path_factory.mktemp("bundles") / "segments"
    arguments = CompileArguments(tiny_checkpoint, folder, layout=Layout.SEGMENTS, kv=KvType.FLOAT32)
    compile_bundle(arguments, SilentProgress())
    return folder


@pytest.fixture(scope="session")
def int8_cache_bundle(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segmented int4 bundle as it is made by default: with int8 caches."""
    folder = tmp_path_factory.mktemp("bundles") / "int8-caches"
    compile_bundle(CompileArguments(tiny_checkpoint, folder, layout=Layout.SEGMENTS), SilentProgress())
    return folder


@pytest.fixture(scope="session")
def fixed_bundle(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of fixed variants."""
    folder = tmp_path_factory.mktemp("bundles") / "fixed"
    compile_bundle(CompileArguments(tiny_checkpoint, folder, rows=(1, 8), context=(64, 128)), SilentProgress())
    return folder


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., tuple[Path, Manifest]]:
    """build(source, **arguments) -> (bundle folder, manifest); pool graphs unless `layout` says otherwise.

    Every call makes another folder.
    """
    count = 0

    def build_bundle(source: Path, **arguments: Any) -> tuple[Path, Manifest]:
        nonlocal count
        count += 1
        output = tmp_path / f"bundle-{count}"
        options = {"layout": Layout.POOL} | arguments
        manifest = compile_bundle(CompileArguments(source, output, **options), SilentProgress())
        return output, manifest

    return build_bundle


@pytest.fixture(scope="session")
def short_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For `--calibration` where what is chosen matters and how well does not: a sixth of what is read without it."""
    path = tmp_path_factory.mktemp("text") / "short.txt"
    path.write_text("\n\n".join(each if isinstance(each, str) else each.plain for each in samples()), encoding="utf-8")
    return path
