"""Compares what a manifest says of its context binaries with what they hold. onnxruntime compares sizes only."""

import re
from collections.abc import Iterable, Mapping

from engine.bundle.manifest import GraphSpec, Manifest, TensorSpec
from engine.bundle.tensor_names import PAST_NAME
from engine.errors import BundleError
from engine.qnn.binary import BinaryGraph, BinaryInfo, BinaryTensor

RELATIVE = 1e-6  # scales are float32 in the binary
DESCRIBED = re.compile(r"_(in|out)$")


def check_binaries(manifest: Manifest, infos: Mapping[str, BinaryInfo]) -> None:
    """Compare every graph of an NPU bundle with what its binaries (by file name) hold.

    BundleError names the graph, the tensor and the difference.
    """
    assert manifest.npu is not None
    graphs = {(file, graph.name): graph for file, info in infos.items() for graph in info.graphs}
    for spec in manifest.graphs:
        chain = manifest.npu.chains.get(spec.name)
        if not chain:
            raise BundleError(f"the manifest does not say which binary graph {spec.name} runs")
        links = [_link(graphs, spec, file, name) for file, name in chain]
        _check_chain(spec, links)
        inputs, outputs = _outer(links)
        _check_side(spec, "input", spec.inputs, inputs)
        _check_side(spec, "output", spec.outputs, outputs)
        _check_caches(spec, inputs, outputs)


def _link(graphs: Mapping[tuple[str, str], BinaryGraph], spec: GraphSpec, file: str, name: str) -> BinaryGraph:
    found = graphs.get((file, name))
    if found is None:
        raise BundleError(f"graph {spec.name} runs {name}, which {file} does not hold")
    return found


def _check_chain(spec: GraphSpec, links: list[BinaryGraph]) -> None:
    """A tensor between two parts must be the same on both sides: it is passed on byte for byte."""
    made: dict[str, BinaryTensor] = {}
    for link in links:
        for tensor in link.inputs:
            before = made.get(tensor.name)
            if before is not None and _form(before) != _form(tensor):
                raise BundleError(
                    f"graph {spec.name}: {tensor.name} leaves one part as {_words(before)} and enters the next as "
                    f"{_words(tensor)}"
                )
        made |= {tensor.name: tensor for tensor in link.outputs}


def _outer(links: list[BinaryGraph]) -> tuple[dict[str, BinaryTensor], dict[str, BinaryTensor]]:
    """Inputs no part makes, outputs no part takes."""
    made = {tensor.name for link in links for tensor in link.outputs}
    taken = {tensor.name for link in links for tensor in link.inputs}
    inputs = {tensor.name: tensor for link in links for tensor in link.inputs if tensor.name not in made}
    outputs = {tensor.name: tensor for link in links for tensor in link.outputs if tensor.name not in taken}
    return inputs, outputs


def _check_side(spec: GraphSpec, side: str, wanted: Iterable[TensorSpec], found: Mapping[str, BinaryTensor]) -> None:
    left = dict(found)
    for tensor in wanted:
        real = left.pop(tensor.name, None)
        if real is None:
            raise BundleError(f"graph {spec.name} has no {side} {tensor.name} in its binary")
        if real.data_format:
            raise BundleError(
                f"graph {spec.name} {side} {tensor.name} has a private layout (data format {real.data_format}), such "
                "as HMX tiles; it cannot be filled from here"
            )
        if real.dtype != tensor.dtype or _axes(real.shape) != _axes(tensor.shape):
            raise BundleError(
                f"graph {spec.name} {side} {tensor.name} is {_words(real)} in its binary, "
                f"the manifest says {tensor.dtype} {list(tensor.shape)}"
            )
        _check_encoding(spec, side, tensor, real)
    if left:
        raise BundleError(f"graph {spec.name} has the {side} {next(iter(left))}, which its manifest does not know")


def _check_encoding(spec: GraphSpec, side: str, tensor: TensorSpec, real: BinaryTensor) -> None:
    scale, offset = _scale(real)
    same = (scale is None) == (tensor.scale is None)
    if same and scale is not None and tensor.scale is not None:
        near = abs(scale - tensor.scale) <= RELATIVE * abs(scale)
        same = near and offset == -(tensor.zero_point or 0)
    if not same:
        raise BundleError(
            f"graph {spec.name} {side} {tensor.name} has scale {scale} and offset {offset} in its binary, the manifest "
            f"says scale {tensor.scale} and zero point {tensor.zero_point}"
        )


def _check_caches(spec: GraphSpec, inputs: Mapping[str, BinaryTensor], outputs: Mapping[str, BinaryTensor]) -> None:
    """Keys and values are copied from output to input as they are, so both must be encoded alike."""
    for name, tensor in inputs.items():
        if not PAST_NAME.fullmatch(name):
            continue
        twin = outputs.get(DESCRIBED.sub("_out", name))
        if twin is None:
            raise BundleError(f"graph {spec.name} takes {name} but gives nothing to fill it with")
        if (twin.dtype, _scale(twin)) != (tensor.dtype, _scale(tensor)):
            raise BundleError(f"graph {spec.name}: {name} is {_words(tensor)}, {twin.name} is {_words(twin)}")


def _form(tensor: BinaryTensor) -> tuple[object, ...]:
    return tensor.dtype, _axes(tensor.shape), tensor.data_format, _scale(tensor)


def _axes(shape: Iterable[int | str]) -> list[int | str]:
    """Exports differ in axes of length 1; the bytes are the same."""
    return [size for size in shape if size != 1]


def _scale(tensor: BinaryTensor) -> tuple[float | None, int | None]:
    """Scale and offset of a quantised tensor, nothing for others."""
    if tensor.encoding is None or tensor.dtype.startswith("float"):
        return None, None
    return tensor.encoding.scales[0], tensor.encoding.offsets[0]


def _words(tensor: BinaryTensor) -> str:
    scale, offset = _scale(tensor)
    encoded = "" if scale is None else f" (scale {scale}, offset {offset})"
    return f"{tensor.dtype} {list(tensor.shape)}{encoded}"
