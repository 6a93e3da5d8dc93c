"""Graphs that hold one sequence a run: the tensors that they carry from run to run, and what must fit between them."""

from collections.abc import Iterable

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TensorSpec
from engine.bundle.tensors import WINDOW_MASK, WINDOW_ROTARY, Carry, carry_of
from engine.errors import BundleError

IN, OUT = "_in", "_out"
KEYS = (Carry.KEYS, Carry.WINDOW_KEYS)
WINDOWS = (Carry.WINDOW_KEYS, Carry.WINDOW_VALUES)


def carried_inputs(graphs: Iterable[GraphSpec]) -> dict[str, TensorSpec]:
    """The tensors that graphs of one shape carry, by the names of their inputs."""
    return {item.name: item for graph in graphs for item in graph.inputs if carry_of(item.name, IN) is not None}


def window_columns(graphs: Iterable[GraphSpec]) -> int:
    """W of graphs of one shape, 0 where they have no window."""
    for name, spec in carried_inputs(graphs).items():
        if carry_of(name, IN) is Carry.WINDOW_KEYS:
            return int(spec.shape[3])
    return 0


def check_serial(manifest: Manifest) -> None:
    """BundleError unless every graph gives what it carries in the form in which it takes it."""
    for graph in manifest.graphs:
        if graph.kind is GraphKind.LMHEAD:
            continue
        given = {tensor.name: tensor for tensor in graph.outputs}
        for name, taken in carried_inputs([graph]).items():
            other = given.get(name.removesuffix(IN) + OUT)
            if other is None or (other.dtype, other.scale, other.zero_point) != (
                taken.dtype,
                taken.scale,
                taken.zero_point,
            ):
                raise BundleError(f"graph {graph.name} takes {name} and does not give it in the same encoding")
            if carry_of(name, IN) is Carry.STATE and other.shape != taken.shape:
                raise BundleError(f"graph {graph.name} takes {name} as {list(taken.shape)}, gives {list(other.shape)}")
        names = {tensor.name for tensor in graph.inputs}
        if window_columns([graph]) and not (manifest.window and WINDOW_MASK in names):
            raise BundleError(f"graph {graph.name} has windows of columns, but no {WINDOW_MASK} or no size of a window")
        if names & set(WINDOW_ROTARY) and manifest.model.local_rope is None:
            raise BundleError(f"graph {graph.name} takes a rotation for windows, of which the manifest tells nothing")
