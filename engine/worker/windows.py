"""Whether a bundle can be served with an attention window as set."""

from engine.bundle.manifest import Manifest
from engine.bundle.segments import MASKED_ATTENTION
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.graphs.attention_window import AttentionWindow


def window_of(manifest: Manifest, config: EngineConfig) -> AttentionWindow:
    """The window that the settings ask for. BundleError names the setting that it cannot go with."""
    window, sinks = config.window, config.sinks
    if not window:
        if sinks:
            raise BundleError(f"sinks = {sinks}: they are seen beside a window, and window is 0")
        return AttentionWindow()
    if not any(graph.name == MASKED_ATTENTION for graph in manifest.graphs):
        raise BundleError(
            f"window = {window}: the bundle has no graph {MASKED_ATTENTION}; compile it again as segments"
        )
    if config.deterministic:
        raise BundleError(f"window = {window}: rows that see all columns and rows that do not are computed in two ways")
    if config.kv_file:
        raise BundleError(f"window = {window}: a kv_file does not say under which window its pages were computed")
    return AttentionWindow(window, sinks)
