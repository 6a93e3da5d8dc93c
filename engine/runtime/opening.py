"""The runtime of a bundle that generates, by the layout of its graphs."""

from collections.abc import Sequence
from pathlib import Path

from engine.adapters.adapter import Adapter
from engine.bundle.manifest import Manifest
from engine.bundle.variant import ShapeTable, shape_of
from engine.bundle.weight_files import read_forecast_prefix
from engine.runtime.attention import EVERYTHING, AttentionWindow
from engine.runtime.fused import FusedRuntime
from engine.runtime.interface import Runtime
from engine.runtime.pooled import OnnxRuntime
from engine.runtime.segmented import SegmentRuntime
from engine.runtime.serial import SerialRuntime
from engine.runtime.sessions import Provider
from engine.runtime.stateless import WholeContextRuntime


def open_generator(
    folder: Path,
    manifest: Manifest,
    shapes: ShapeTable,
    provider: Provider,
    adapters: Sequence[Adapter] = (),
    window: AttentionWindow = EVERYTHING,
    forecasts: bool = False,
) -> Runtime:
    """Everything loaded. forecasts: whether the rows that forecast are going to be used. BundleError."""
    if manifest.fused is not None:
        return FusedRuntime(folder, manifest, shapes, provider)
    if manifest.is_segmented:
        return SegmentRuntime(folder, manifest, shapes, provider, adapters, window)
    if manifest.reads_whole_context:
        return open_whole_context(folder, manifest, shapes, provider)
    if manifest.is_serial:
        return SerialRuntime(folder, manifest, shapes, provider)
    runtime = OnnxRuntime(folder, manifest, shapes, provider)
    if manifest.forecast is not None and forecasts:
        runtime.load_prefix(read_forecast_prefix(folder, manifest.forecast, manifest.model, manifest.kv_dtype))
    return runtime


def open_whole_context(folder: Path, manifest: Manifest, shapes: ShapeTable, provider: Provider) -> Runtime:
    """The runtime of graphs without a past."""
    found = sorted({shape for graph in manifest.graphs if (shape := shape_of(graph)) is not None})
    table = ShapeTable(tuple(found), found[-1].rows, 0)
    lengths = [shape.rows for shape in found]
    return WholeContextRuntime(OnnxRuntime(folder, manifest, table, provider), lengths, shapes)
