"""Exported folders that are not what their description says are refused when they are opened."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.compile.arguments import ExportArguments
from engine.compile.graphs.block_export import EXPORT_FILE, export_blocks
from engine.compile.progress import SilentProgress
from engine.errors import BundleError
from tests.engine.compile.graphs.block_export.eager import write_block_checkpoint
from tools.block_loop import ExportedGraph, load_export


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    source = write_block_checkpoint(folder / "source", layers=1)
    export_blocks(ExportArguments(source, folder / "graph", 16), SilentProgress())
    return folder / "graph"


def test_an_exported_folder_is_opened(exported: Path) -> None:
    assert ExportedGraph(exported).export.context == 16


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"context": 20}, "not what its description says"),
        ({"mask_layers": 3}, "not what its description says"),
        ({"dtype": "float16"}, "its description says float16"),
        ({"graph": "../graph/model.onnx"}, "cannot be loaded"),
        ({"graph": "missing.onnx"}, "cannot be loaded"),
    ],
)
def test_a_description_that_lies_is_refused(
    exported: Path, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(exported, folder)
    lie = msgspec.structs.replace(load_export(folder), **change)
    (folder / EXPORT_FILE).write_bytes(msgspec.json.encode(lie))
    with pytest.raises(BundleError, match=reason):
        ExportedGraph(folder)
