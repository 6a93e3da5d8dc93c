"""The weights of an LM head whose graph takes them as an input: the file that `head_weight` of a manifest names.

The file holds the tensor as it is, in row-major order and the input's type, and nothing else.
"""

import math
import re
from pathlib import Path

import numpy as np

from engine.bundle.encoding import Array
from engine.bundle.manifest import ITEM_BYTES, GraphSpec, Manifest, TensorSpec
from engine.errors import BundleError
from engine.files.names import confined
from engine.files.opening import read_bytes, shown

WEIGHT_NAME = re.compile(r"(lm_?head[._])?weight")


def weight_input(graph: GraphSpec) -> TensorSpec | None:
    """The input that takes the head's weights, None for a graph that holds its own."""
    return next((tensor for tensor in graph.inputs if WEIGHT_NAME.fullmatch(tensor.name)), None)


def check_head_weight(manifest: Manifest) -> None:
    """BundleError unless every such input is [vocabulary, hidden], or turned, and the listed file is of its size."""
    taken = {graph.name: tensor for graph in manifest.graphs if (tensor := weight_input(graph)) is not None}
    name = manifest.head_weight
    if not taken:
        if name:
            raise BundleError(f"head_weight names {name}, but no graph takes the LM head's weights as an input")
        return
    if not name:
        raise BundleError(
            f"graph {next(iter(taken))} takes the LM head's weights as an input, head_weight names no file"
        )
    if name not in manifest.files:
        raise BundleError(f"the manifest uses {name}, but does not list it among the bundle's files")
    first = next(iter(taken.values()))
    for graph, tensor in taken.items():
        _check_form(manifest, graph, tensor)
        if (tensor.dtype, tensor.shape) != (first.dtype, first.shape):
            raise BundleError(f"graphs take the LM head's weights in several forms: {_form(first)} and {_form(tensor)}")
    wanted = math.prod(map(int, first.shape)) * ITEM_BYTES[first.dtype]
    if manifest.files[name].bytes != wanted:
        raise BundleError(f"{name} has {manifest.files[name].bytes} bytes, {first.name} {_form(first)} takes {wanted}")


def _check_form(manifest: Manifest, graph: str, tensor: TensorSpec) -> None:
    model, long = manifest.model, [size for size in tensor.shape if size != 1]
    is_known = len(long) == 2 and all(isinstance(size, int) for size in long) and tensor.dtype in ITEM_BYTES
    if not is_known or model.vocab not in long or (model.hidden and model.hidden not in long):
        raise BundleError(
            f"graph {graph} takes {tensor.name} as {_form(tensor)}; the LM head's weights are "
            f"[{model.vocab}, {model.hidden or 'hidden'}] here"
        )


def _form(tensor: TensorSpec) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def read_head_weight(folder: Path, manifest: Manifest) -> Array | None:
    """The weights, in the shape of the input, None for a bundle whose graphs hold their own. BundleError."""
    check_head_weight(manifest)
    if not manifest.head_weight:
        return None
    tensor = next(tensor for graph in manifest.graphs if (tensor := weight_input(graph)) is not None)
    size = manifest.files[manifest.head_weight].bytes
    try:
        content = read_bytes(confined(folder, manifest.head_weight), size)
    except OSError as error:
        raise BundleError(f"{manifest.head_weight} cannot be read: {shown(error)}") from error
    if len(content) != size:
        raise BundleError(f"{manifest.head_weight} has {len(content)} bytes, its manifest says {size}")
    return np.frombuffer(content, np.dtype(tensor.dtype)).reshape([int(dim) for dim in tensor.shape])
