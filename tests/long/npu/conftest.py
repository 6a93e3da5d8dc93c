"""The embedded model compiled for Snapdragon X Elite, once for all workers; run in the HTP emulator."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from engine.compile.arguments import CompileArguments
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.demo.location import demo_folder
from tests.long.npu.layouts import LAYOUTS

Bundles = Callable[[str], Path]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of all workers."""
    pytest.importorskip("onnxruntime_qnn")
    folder = tmp_path_factory.getbasetemp().parents["PYTEST_XDIST_WORKER" in os.environ] / "npu_bundles"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def npu_cache(shared: Path) -> Path:
    """What servers remember of `npu_bundle`: loads that were tried and step times, for each start half of its time."""
    return shared / "cache"


@pytest.fixture(scope="session")
def npu_bundle(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """npu_bundle("fp16") is the folder of a layout of `LAYOUTS`."""
    own = tmp_path_factory.mktemp("npu")

    def make(layout: str) -> Path:
        output, draft = shared / layout, own / layout
        if not output.exists():
            fields = {"source": demo_folder(), "output": draft, "name": "demo", "parity_tokens": 32, **LAYOUTS[layout]}
            compile_bundle(CompileArguments(**fields), SilentProgress())  # type: ignore[arg-type]
            with suppress(OSError):  # another worker was faster
                draft.replace(output)
        return output

    return make
