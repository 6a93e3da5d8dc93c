"""Which of the ways that a bundle stores its weights are loaded: all of them are the same model, each costs memory."""

from dataclasses import dataclass

import msgspec

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.errors import BundleError

AUTO, BOTH, NARROW, WIDE = "auto", "both", "narrow", "wide"
MEMORY_SHARE = 0.5  # of the machine, for weights; caches and everybody else have the rest


@dataclass(frozen=True, slots=True)
class Storage:
    """The graphs to load, and a sentence on why it is these."""

    manifest: Manifest
    reason: str


def choose_storage(manifest: Manifest, choice: str, memory: int) -> Storage | None:
    """None for a bundle with one storage only. memory: of the machine, in bytes, 0 = not known.

    BundleError when the choice asks for a storage that the bundle does not have.
    """
    wide_from = max(graph.least_rows for graph in manifest.graphs)
    if wide_from == 1:
        if choice not in (AUTO, NARROW):
            raise BundleError(f"weights = {choice}: the bundle stores its weights in one way; auto or narrow serves it")
        return None
    weights = sum(entry.bytes for entry in manifest.files.values())
    if choice == AUTO:
        choice = BOTH if not memory or weights <= MEMORY_SHARE * memory else NARROW
        told = (
            f"{weights / 1e9:.1f} GB of weights on a machine of {memory / 1e9:.1f} GB" if memory else "memory unknown"
        )
    else:
        told = "as set"
    if choice == BOTH:
        return Storage(
            manifest, f"narrow passes and those of {wide_from} rows and more have their own weights ({told})"
        )
    kept = [graph for graph in manifest.graphs if _is_kept(graph, wide_from, choice)]
    graphs = tuple(msgspec.structs.replace(graph, least_rows=1) for graph in kept)
    return Storage(msgspec.structs.replace(manifest, graphs=graphs), f"all passes have the {choice} weights ({told})")


def _is_kept(graph: GraphSpec, wide_from: int, choice: str) -> bool:
    return graph.kind is not GraphKind.LINEAR or (graph.least_rows == wide_from) == (choice == WIDE)
