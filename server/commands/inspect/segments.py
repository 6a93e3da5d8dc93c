"""The graphs of a segmented bundle, drawn by kind: it has two for every layer, and all of a kind are alike."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.segments import LINEAR_DATA, SHARED_DATA
from server.commands.inspect.sizes import size_text


def segment_table(manifest: Manifest) -> RenderableType:
    """One row for the linear graphs, one for the attention, one for what stands beside the matrices."""
    table = Table(title="graphs", title_justify="left", title_style="bold")
    for heading in ("kind", "weights"):
        table.add_column(heading, no_wrap=True)
    for heading in ("graphs", "size", "stored"):
        table.add_column(heading, justify="right")
    linear = [graph for graph in manifest.graphs if graph.kind is GraphKind.LINEAR]
    size, stored = _graphs_size(manifest, linear), _file_size(manifest, LINEAR_DATA)
    table.add_row(GraphKind.LINEAR.value, manifest.quant, str(len(linear)), size, stored)
    attention = [graph for graph in manifest.graphs if graph.kind is GraphKind.ATTENTION]
    size, count = _graphs_size(manifest, attention), str(len(attention))
    table.add_row(GraphKind.ATTENTION.value, "none; runs for each sequence", count, size, "")
    recurrent = [graph for graph in manifest.graphs if graph.kind is GraphKind.RECURRENT]
    if recurrent:
        weights, size = "convolutions; runs for each sequence", _graphs_size(manifest, recurrent)
        stored = _file_size(manifest, manifest.conv_weights)
        table.add_row(GraphKind.RECURRENT.value, weights, str(len(recurrent)), size, stored)
    if manifest.kv_scales:
        table.add_row("", f"scales of {manifest.kv_dtype} caches", "", "", _file_size(manifest, manifest.kv_scales))
    table.add_row("", "embedding, norms, biases", "", "", _file_size(manifest, SHARED_DATA))
    return table


def grouped_files(manifest: Manifest) -> list[tuple[str, int, str]]:
    """Name, bytes and sha256 of each file; the linear graphs together, without one."""
    linear = {graph.file for graph in manifest.graphs if graph.kind is GraphKind.LINEAR}
    rows = [(name, entry.bytes, entry.sha256) for name, entry in sorted(manifest.files.items()) if name not in linear]
    sizes = [entry.bytes for name, entry in manifest.files.items() if name in linear]
    return [*rows, (f"linear_*.onnx ({len(sizes)} files)", sum(sizes), "")] if sizes else rows


def _graphs_size(manifest: Manifest, graphs: Sequence[GraphSpec]) -> str:
    return size_text(sum(manifest.files[graph.file].bytes for graph in graphs if graph.file in manifest.files))


def _file_size(manifest: Manifest, name: str) -> str:
    return size_text(manifest.files[name].bytes) if name in manifest.files else ""
