"""The embedded model compiled for Snapdragon X Elite, once per session; run in the HTP emulator."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.compile.arguments import CompileArguments
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.demo.location import demo_folder
from tests.long.npu.layouts import LAYOUTS

Bundles = Callable[[str], Path]


@pytest.fixture(scope="session")
def npu_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """npu_bundle("fp16") is the folder of a layout of `LAYOUTS`."""
    pytest.importorskip("onnxruntime_qnn")
    folder = tmp_path_factory.mktemp("npu")

    def make(layout: str) -> Path:
        output = folder / layout
        if not output.exists():
            fields = {"source": demo_folder(), "output": output, "name": "demo", "parity_tokens": 32, **LAYOUTS[layout]}
            compile_bundle(CompileArguments(**fields), SilentProgress())  # type: ignore[arg-type]
        return output

    return make
