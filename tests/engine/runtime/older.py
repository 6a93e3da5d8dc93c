"""Bundles as they were compiled before there were certain graphs."""

import shutil
from pathlib import Path

import msgspec

from engine.bundle.manifest import load_manifest, save_manifest


def without_graphs(source: Path, folder: Path, *names: str) -> Path:
    """A copy of a bundle without these graphs."""
    shutil.copytree(source, folder)
    manifest = load_manifest(folder)
    files = {name: entry for name, entry in manifest.files.items() if name.removesuffix(".onnx") not in names}
    for name in names:
        (folder / f"{name}.onnx").unlink()
    graphs = tuple(graph for graph in manifest.graphs if graph.name not in names)
    save_manifest(folder, msgspec.structs.replace(manifest, graphs=graphs, files=files))
    return folder
