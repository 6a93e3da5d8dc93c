"""A binary's tensors under the names its wrapper gives them, as the provider will bind them."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from engine.bundle.manifest import Manifest
from engine.errors import BundleError
from engine.qnn.binary import BinaryGraph, BinaryInfo, BinaryTensor
from engine.qnn.ep_context import ContextNode, check_source, read_wrapper


def as_bound(folder: Path, manifest: Manifest, infos: Mapping[str, BinaryInfo]) -> dict[str, BinaryInfo]:
    """The descriptions with the wrappers' names in place of the binaries' own, where they differ.

    infos: by file name. BundleError for a wrapper of another provider, one with other numbers of tensors, or one that
    runs other graphs than the manifest says: its own binaries are what would be loaded.
    """
    assert manifest.npu is not None
    nodes: dict[tuple[str, str], tuple[ContextNode, str]] = {}
    for graph in manifest.graphs:
        found, told = read_wrapper(folder / graph.file), manifest.npu.chains.get(graph.name, ())
        runs = tuple((node.binary, node.graph) for node in found)
        if told and runs != told:
            raise BundleError(f"{graph.file} runs {_words(runs)}, the manifest says {_words(told)}")
        nodes |= {(node.binary, node.graph): (node, graph.file) for node in found}
    for node, file in nodes.values():
        check_source(node, file)
    return {file: _renamed(file, info, nodes) for file, info in infos.items()}


def bound_graph(graph: BinaryGraph, node: ContextNode, wrapper: str) -> BinaryGraph:
    """The provider takes a name that the binary knows, and goes by position otherwise."""
    return BinaryGraph(
        graph.name,
        _side(graph.inputs, node.inputs, wrapper, graph.name),
        _side(graph.outputs, node.outputs, wrapper, graph.name),
    )


def _words(links: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{graph} of {binary}" for binary, graph in links) or "no binary"


def _renamed(file: str, info: BinaryInfo, nodes: Mapping[tuple[str, str], tuple[ContextNode, str]]) -> BinaryInfo:
    graphs = []
    for graph in info.graphs:
        node, wrapper = nodes.get((file, graph.name), (None, ""))
        graphs.append(graph if node is None else bound_graph(graph, node, wrapper))
    return msgspec.structs.replace(info, graphs=tuple(graphs))


def _side(
    tensors: tuple[BinaryTensor, ...], values: tuple[str, ...], wrapper: str, graph: str
) -> tuple[BinaryTensor, ...]:
    if len(tensors) != len(values):
        raise BundleError(f"{wrapper} gives graph {graph} {len(values)} tensors on one side, it has {len(tensors)}")
    known = {tensor.name for tensor in tensors}
    if known == set(values):
        return tensors
    return tuple(
        tensor if tensor.name in values else msgspec.structs.replace(tensor, name=value)
        for tensor, value in zip(tensors, values, strict=True)
    )
