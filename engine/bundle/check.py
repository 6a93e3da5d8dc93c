"""Checks a manifest against itself: the shape and type that each tensor must have, given its graph and the model.

Legend: N = rows, C = context, P = past columns, K = KV heads, D = head size.
"""

from collections.abc import Sequence

from engine.bundle.manifest import GraphSpec, Manifest, TensorSpec
from engine.bundle.tensor_names import is_scatter, place_of
from engine.errors import BundleError

Form = tuple[str, tuple[int, ...]]  # type, "" = any; shape, where axes of length 1 do not count


def check_contract(manifest: Manifest) -> None:
    """For graphs of fixed shapes that hold all layers of a pass. BundleError names the graph and the tensor."""
    for spec in manifest.graphs:
        layers = set()
        for side, suffix, tensors in (("input", "_in", spec.inputs), ("output", "_out", spec.outputs)):
            for tensor in tensors:
                place = place_of(tensor.name, suffix)
                layers |= {place.layer} if place is not None else set()
                _check_form(spec, side, tensor, _wanted(manifest, spec, tensor, suffix))
        if layers and layers != set(range(manifest.model.layers)):
            raise BundleError(
                f"graph {spec.name} has caches of layers {', '.join(map(str, sorted(layers)))}, the manifest says that "
                f"the model has {manifest.model.layers}"
            )


def _wanted(manifest: Manifest, spec: GraphSpec, tensor: TensorSpec, suffix: str) -> Form | None:
    """None for a tensor of which nothing is known, such as a hidden state."""
    model, rows, context = manifest.model, spec.rows or 0, spec.context or 0
    known: dict[str, Form] = {
        "input_ids": ("int32", (rows,)),
        "attention_mask": ("", (rows, context)),
        "position_ids_cos": ("", (rows, model.rope.rotary_dim // 2)),
        "position_ids_sin": ("", (rows, model.rope.rotary_dim // 2)),
        "logits": ("", (rows, model.vocab)),
    }
    place = place_of(tensor.name, suffix)
    if place is None:
        return known.get(tensor.name)
    past = context if is_scatter(manifest.graphs) else context - rows
    columns = past if suffix == "_in" else rows
    heads = model.kv_heads if place.head is None else 1
    shape = (heads, columns, model.head_dim) if place.side else (heads, model.head_dim, columns)
    return manifest.kv_dtype, shape


def _check_form(spec: GraphSpec, side: str, tensor: TensorSpec, wanted: Form | None) -> None:
    if wanted is None:
        return
    dtype, shape = wanted
    if (dtype and dtype != tensor.dtype) or _long(tensor.shape) != _long(shape):
        raise BundleError(
            f"graph {spec.name} {side} {tensor.name} is {tensor.dtype} {list(tensor.shape)} in the manifest, whose "
            f"rows, context and model want {dtype or 'numbers'} {list(shape)}"
        )


def _long(shape: Sequence[int | str]) -> list[int | str]:
    return [size for size in shape if size != 1]
