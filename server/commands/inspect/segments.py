"""The graphs of a segmented bundle, drawn by kind: it has two for every layer, and all of a kind are alike."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.segments import NARROW_DATA, SHARED_DATA, WIDE_DATA
from server.commands.inspect.sizes import size_text


def segment_table(manifest: Manifest) -> RenderableType:
    """One row for the linear graphs of each storage, one for the attention, one for what the storages share."""
    table = Table(title="graphs", title_justify="left", title_style="bold")
    for heading in ("kind", "weights"):
        table.add_column(heading, no_wrap=True)
    for heading in ("rows", "graphs", "size", "stored"):
        table.add_column(heading, justify="right")
    linear = [graph for graph in manifest.graphs if graph.kind is GraphKind.LINEAR]
    starts = sorted({graph.least_rows for graph in linear})
    for least in starts:
        is_wide = least > 1
        graphs = [graph for graph in linear if graph.least_rows == least]
        table.add_row(
            GraphKind.LINEAR.value,
            f"wide: {manifest.wide_quant}" if is_wide else f"narrow: {manifest.quant}",
            _rows_text(least, starts),
            str(len(graphs)),
            _graphs_size(manifest, graphs),
            _file_size(manifest, WIDE_DATA if is_wide else NARROW_DATA),
        )
    attention = [graph for graph in manifest.graphs if graph.kind is GraphKind.ATTENTION]
    size, count = _graphs_size(manifest, attention), str(len(attention))
    table.add_row(GraphKind.ATTENTION.value, "none; runs for each sequence", "1+", count, size, "")
    recurrent = [graph for graph in manifest.graphs if graph.kind is GraphKind.RECURRENT]
    if recurrent:
        weights, size = "convolutions; runs for each sequence", _graphs_size(manifest, recurrent)
        stored = _file_size(manifest, manifest.conv_weights)
        table.add_row(GraphKind.RECURRENT.value, weights, "1+", str(len(recurrent)), size, stored)
    if manifest.kv_scales:
        table.add_row("", f"scales of {manifest.kv_dtype} caches", "", "", "", _file_size(manifest, manifest.kv_scales))
    table.add_row("", "shared: embedding, norms", "", "", "", _file_size(manifest, SHARED_DATA))
    return table


def grouped_files(manifest: Manifest) -> list[tuple[str, int, str]]:
    """Name, bytes and sha256 of each file; the linear graphs together, without one."""
    linear = {graph.file for graph in manifest.graphs if graph.kind is GraphKind.LINEAR}
    rows = [(name, entry.bytes, entry.sha256) for name, entry in sorted(manifest.files.items()) if name not in linear]
    sizes = [entry.bytes for name, entry in manifest.files.items() if name in linear]
    return [*rows, (f"linear_*.onnx ({len(sizes)} files)", sum(sizes), "")] if sizes else rows


def _rows_text(least: int, starts: Sequence[int]) -> str:
    """'1-7', '8+'."""
    following = [start for start in starts if start > least]
    return f"{least}-{following[0] - 1}" if following else f"{least}+"


def _graphs_size(manifest: Manifest, graphs: Sequence[GraphSpec]) -> str:
    return size_text(sum(manifest.files[graph.file].bytes for graph in graphs if graph.file in manifest.files))


def _file_size(manifest: Manifest, name: str) -> str:
    return size_text(manifest.files[name].bytes) if name in manifest.files else ""
