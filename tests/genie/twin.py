"""Runs a converted Genie folder on the CPU provider: every wrapper is replaced by the parts its nodes stand for."""

from pathlib import Path

import msgspec
import onnx
from onnx import helper

from engine.bundle.manifest import describe_file, load_manifest, save_manifest
from engine.genie.convert import Toolbox
from engine.runtime.qnn.binary import as_bound, read_wrapper
from engine.runtime.qnn.trial import check_binaries
from engine.sources.resolve import convert_folder
from tests.genie.generator import Generated


def convert_to_twin(made: Generated, cache: Path) -> Path:
    """Convert a generated folder; the bundle it gives has ONNX graphs in place of context binaries.

    Before that it must pass what is checked of its binaries when it is loaded on a device.
    """
    folder = convert_folder(made.folder, cache, Toolbox(lambda path: made.infos[path.name], ""))
    manifest = load_manifest(folder)
    check_binaries(manifest, as_bound(folder, manifest, made.infos))
    files = dict(manifest.files)
    for graph in manifest.every_graph:
        wrapper = onnx.load(str(folder / graph.file))
        merged = _merged(made, folder / graph.file, wrapper.graph)
        onnx.save(merged, str(folder / graph.file))
        files[graph.file] = describe_file(folder / graph.file)
    save_manifest(folder, msgspec.structs.replace(manifest, files=files, target="cpu", npu=None))
    return folder


def _merged(made: Generated, path: Path, outer: onnx.GraphProto) -> onnx.ModelProto:
    nodes, tensors, opsets = [], [], {}
    for number, node in enumerate(read_wrapper(path)):
        model = made.models[node.binary][node.graph]
        opsets |= {item.domain: item.version for item in model.opset_import}
        inner, stem = model.graph, f"part{number}/"
        taken = dict(zip((value.name for value in inner.input), node.inputs, strict=True))
        given = dict(zip((value.name for value in inner.output), node.outputs, strict=True))
        names = taken | given
        for tensor in inner.initializer:
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            copy.name = stem + tensor.name
            tensors.append(copy)
        for operation in inner.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(operation)
            copy.name = stem + operation.name
            copy.input[:] = [names.get(name, stem + name) if name else "" for name in operation.input]
            copy.output[:] = [names.get(name, stem + name) for name in operation.output]
            nodes.append(copy)
    graph = helper.make_graph(nodes, "twin", list(outer.input), list(outer.output), tensors)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=11)
