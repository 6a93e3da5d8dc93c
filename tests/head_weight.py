"""Bundles whose LM head takes its weights as an input, made of ones that hold them."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import helper, numpy_helper

from engine.bundle.manifest import GraphKind, Manifest, TensorSpec, describe_file, load_manifest, save_manifest


def expose_weight(model: onnx.ModelProto, vocab: int) -> np.ndarray:
    """Make the head's matrix the input `weight` [vocab, hidden] of a model that has it inside; the matrix."""
    graph = model.graph
    found = next(tensor for tensor in graph.initializer if len(tensor.dims) == 2 and vocab in tensor.dims)
    matrix = numpy_helper.to_array(found)
    graph.initializer.remove(found)
    turned = np.ascontiguousarray(matrix.T)
    graph.input.append(helper.make_tensor_value_info("weight", found.data_type, turned.shape))
    graph.node.insert(0, helper.make_node("Transpose", ["weight"], [found.name], name="turn_weight", perm=[1, 0]))
    return turned


def with_weight_input(bundle: Path, folder: Path) -> Manifest:
    """Copy a float bundle with a head of its own, whose weights become the file lm_head.raw."""
    shutil.copytree(bundle, folder)
    manifest = load_manifest(folder)
    graphs = []
    for spec in manifest.graphs:
        inputs = spec.inputs
        if spec.kind is GraphKind.LMHEAD:
            model = onnx.load(str(folder / spec.file))
            weight = expose_weight(model, manifest.model.vocab)
            (folder / "lm_head.raw").write_bytes(weight.tobytes())
            onnx.save(model, str(folder / spec.file))
            inputs = (*inputs, TensorSpec("weight", str(weight.dtype), weight.shape))
        graphs.append(msgspec.structs.replace(spec, inputs=inputs))
    files = {name: describe_file(folder / name) for name in (*manifest.files, "lm_head.raw")}
    made = msgspec.structs.replace(manifest, graphs=tuple(graphs), files=files, head_weight="lm_head.raw")
    save_manifest(folder, made)
    return made
