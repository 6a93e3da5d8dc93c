"""From a written graph to the contract of fused graphs: names, control, updated caches, order of tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from engine.bundle.fused import CONTROL, CONTROL_HEAD, FusedShape, fresh_tensors, input_order
from engine.bundle.fused_spec import FusedSpec
from engine.bundle.manifest import ModelSpec, TensorSpec
from engine.compile.fused.kv_update import CacheUpdater


@dataclass(frozen=True, slots=True)
class WrittenGraph:
    """A graph's model with its declared inputs and outputs."""

    model: onnx.ModelProto
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def finish(
    written: WrittenGraph, model_spec: ModelSpec, shape: FusedShape, fused: FusedSpec, has_pairs: bool
) -> WrittenGraph:
    """Give fresh keys and values their names, and where caches are updated by the graph add them and the control.

    has_pairs: see `CacheUpdater`.
    """
    model = onnx.ModelProto()
    model.CopyFrom(written.model)
    names = {
        row_name: name
        for layer in range(model_spec.layers)
        for row_name, name in zip(
            (f"past_key_{layer}_out", f"past_value_{layer}_out"), fresh_tensors(layer), strict=True
        )
    }
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    inputs, outputs = written.inputs, _renamed(written.outputs, names)
    if fused.kv_update_on_device:
        inputs = (*inputs, TensorSpec(CONTROL, "int32", (CONTROL_HEAD + shape.slots,)))
        outputs = (*outputs, *CacheUpdater(model.graph, model_spec, shape, fused.past, has_pairs).add(inputs))
    by_name = {tensor.name: tensor for tensor in inputs}
    inputs = tuple(by_name[name] for name in input_order(shape, model_spec.layers) if name in by_name)
    # Logits first, as the contract has them; then fresh keys and values, then caches.
    outputs = tuple(sorted(outputs, key=lambda tensor: (tensor.name != "logits", tensor.name.startswith("updated"))))
    for declared, tensors in ((model.graph.input, inputs), (model.graph.output, outputs)):
        del declared[:]
        declared.extend(_value_info(tensor) for tensor in tensors)
    return WrittenGraph(model, inputs, outputs)


def _renamed(tensors: Sequence[TensorSpec], names: Mapping[str, str]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(names.get(each.name, each.name), each.dtype, each.shape, each.scale, each.zero_point)
        for each in tensors
    )


def _value_info(tensor: TensorSpec) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    return helper.make_tensor_value_info(tensor.name, kind, list(tensor.shape))
