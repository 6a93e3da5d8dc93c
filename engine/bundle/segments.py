"""Segmented bundles: which graphs there are, and the tensors of each.

Part 1 of the L + 1 linear parts embeds and starts layer 0, part i + 1 finishes layer i - 1 and starts layer i, the
last finishes and gives logits. Between two parts an attention graph runs once for each sequence.
A layer without keys and values has a recurrent graph there instead.
Legend: N = rows, Q = heads * head_dim, K = KV heads, D = head size.

Two further graphs, which bundles may lack, compute attention over columns that sequences share, and under any mask.
"""

from collections.abc import Sequence

from engine.bundle.forms import FREE_COLUMNS, FREE_LOGIT_ROWS, FREE_ROWS, Form, check_form
from engine.bundle.kv_scales import ROUNDED
from engine.bundle.lora_tensors import lora_forms
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, ModelSpec, TensorSpec
from engine.bundle.recurrent_forms import GATE_IN, GATE_OUT, RECURRENT, finished_forms, recurrent_forms, started_forms
from engine.errors import BundleError

SHARED_DATA, LINEAR_DATA = "shared.data", "linear.data"  # embedding, norms and biases; the matrices
ATTENTION, BASE_ATTENTION, MASKED_ATTENTION = "attention", "attention_base", "attention_masked"
FLOAT, INTEGER = "float32", "int32"
# The second is for int8 caches: the operator's kernel for them is fast for few rows, and slow for many.
ATTENTION_CHUNK = "attention_chunk"
IN_PLACE_ROWS = 8  # most rows of a sequence that the first computes; measured on two cores, at 16 heads on 8 of 128
Forms = dict[str, Form]


def linear_forms(manifest: Manifest, part: int) -> tuple[Forms, Forms]:
    """Inputs and outputs of a linear part."""
    model, last = manifest.model, manifest.model.layers + 1
    rows = FREE_LOGIT_ROWS if part == last else FREE_ROWS
    inputs: Forms = {"input_ids": (INTEGER, (1, rows))}
    if part > 1:
        hidden: Form = (FLOAT, (1, rows, model.hidden))
        inputs = {"hidden_in": hidden, **_mixed_forms(model, part - 2, rows)}
    takes = {True: part < last, False: part > 1}  # the start of a layer, the end of the one before
    inputs |= lora_forms((module for module in manifest.lora if takes[module.starts_layer]), rows)
    if part == last:
        return inputs, {"logits": (FLOAT, (1, rows, manifest.row_outputs))}
    outputs: Forms = {"hidden_out": (FLOAT, (1, rows, model.hidden))}
    if part - 1 not in model.attention_layers:
        assert model.recurrent is not None
        return inputs, outputs | started_forms(model.recurrent)
    for name in ("position_ids_cos", "position_ids_sin"):
        inputs[name] = (FLOAT, (1, 1, rows, model.rope.rotary_dim // 2))
    return inputs, outputs | _fresh_forms(manifest) | _gate_forms(model, GATE_OUT, rows)


def _mixed_forms(model: ModelSpec, layer: int, rows: str) -> Forms:
    """What the end of a layer takes of its attention or recurrence."""
    if layer not in model.attention_layers:
        assert model.recurrent is not None
        return finished_forms(model.recurrent, rows)
    return {"attended": (FLOAT, (1, rows, model.heads * model.head_dim)), **_gate_forms(model, GATE_IN, rows)}


def _gate_forms(model: ModelSpec, name: str, rows: str) -> Forms:
    width = model.heads * model.head_dim
    return {name: (FLOAT, (1, rows, width))} if model.has_output_gate else {}


def attention_forms(manifest: Manifest) -> tuple[Forms, Forms]:
    """Inputs and outputs of the attention graph; seqlens_k counts past columns + rows - 1.

    It writes the fresh columns behind the past ones. int8 caches come with their scales.
    """
    model = manifest.model
    cache: Form = (manifest.kv_dtype, (1, model.kv_heads, FREE_COLUMNS, model.head_dim))
    lengths: Forms = {"seqlens_k": (INTEGER, (1,)), "total_sequence_length": (INTEGER, ())}
    inputs = _fresh_forms(manifest) | {"past_key": cache, "past_value": cache} | lengths
    inputs |= _scale_forms(manifest)
    attended: Form = (FLOAT, (1, FREE_ROWS, model.heads * model.head_dim))
    return inputs, {"attended": attended, "present_key": cache, "present_value": cache}


def masked_forms(manifest: Manifest) -> tuple[Forms, Forms]:
    """Of attention over a sequence's own columns; queries and what they come to by key heads."""
    inputs, base = base_forms(manifest)
    return inputs | base, {"attended": base["base_attended"]}


def base_forms(manifest: Manifest) -> tuple[Forms, Forms]:
    """Of attention over shared columns; base_weight is the logarithm of what their scores add up to."""
    model = manifest.model
    heads = (FREE_ROWS, model.kv_heads, model.heads // model.kv_heads)
    wide: Form = (FLOAT, (*heads, model.head_dim))
    cache: Form = (manifest.kv_dtype, (1, model.kv_heads, FREE_COLUMNS, model.head_dim))
    inputs: Forms = {"query": wide, "keys": cache, "values": cache, "mask": (FLOAT, (FREE_ROWS, 1, FREE_COLUMNS))}
    return inputs | _scale_forms(manifest), {"base_attended": wide, "base_weight": (FLOAT, (*heads, 1))}


def chunk_forms(manifest: Manifest) -> tuple[Forms, Forms]:
    """Of the graph that gives the fresh columns of int8 caches as rows of codes instead of writing them."""
    inputs, outputs = attention_forms(manifest)
    codes: Form = (ROUNDED, (1, FREE_ROWS, manifest.model.kv_heads * manifest.model.head_dim))
    return inputs, {"attended": outputs["attended"], "key_codes": codes, "value_codes": codes}


def _scale_forms(manifest: Manifest) -> Forms:
    """Of a layer's scales, which attention over int8 caches takes."""
    if manifest.kv_dtype != ROUNDED:
        return {}
    scale: Form = (FLOAT, (1, manifest.model.kv_heads, 1, manifest.model.head_dim))
    return {"key_scale": scale, "value_scale": scale}


def _fresh_forms(manifest: Manifest) -> Forms:
    model = manifest.model
    key: Form = (FLOAT, (1, FREE_ROWS, model.kv_heads * model.head_dim))
    return {"query": (FLOAT, (1, FREE_ROWS, model.heads * model.head_dim)), "key": key, "value": key}


ATTENTION_FORMS = {
    ATTENTION: attention_forms,
    ATTENTION_CHUNK: chunk_forms,
    BASE_ATTENTION: base_forms,
    MASKED_ATTENTION: masked_forms,
}


def check_segments(manifest: Manifest) -> None:
    """BundleError names what is missing, or the graph and the tensor that is not as the model wants it."""
    parts = manifest.model.layers + 1
    _check_whole(manifest, parts)
    for spec in manifest.graphs:
        if spec.kind is GraphKind.ATTENTION:
            inputs, outputs = ATTENTION_FORMS[spec.name](manifest)
        elif spec.kind is GraphKind.RECURRENT and manifest.model.recurrent is not None:
            inputs, outputs = recurrent_forms(manifest.model.recurrent)
        elif spec.kind is GraphKind.LINEAR and spec.parts == parts and spec.part <= parts:
            inputs, outputs = linear_forms(manifest, spec.part)
        else:
            raise BundleError(
                f"graph {spec.name} is {spec.kind} {spec.part} of {spec.parts} among {parts} linear parts"
            )
        _check_side(spec, "input", spec.inputs, inputs)
        _check_side(spec, "output", spec.outputs, outputs)


def _check_whole(manifest: Manifest, parts: int) -> None:
    if manifest.kv_dtype not in (FLOAT, ROUNDED):
        raise BundleError(f"a bundle of segments has caches of {FLOAT} or {ROUNDED}, not of {manifest.kv_dtype}")
    names = sorted(graph.name for graph in manifest.graphs if graph.kind is GraphKind.ATTENTION)
    wanted = [ATTENTION] if manifest.kv_dtype == FLOAT else [ATTENTION, ATTENTION_CHUNK]
    if names not in (wanted, sorted([*wanted, BASE_ATTENTION, MASKED_ATTENTION])):
        raise BundleError(
            f"a bundle of segments has one attention graph for all layers, by caches of {manifest.kv_dtype} "
            f"{' and '.join(wanted)}; this one has {', '.join(names)}"
        )
    recurrent = [graph.name for graph in manifest.graphs if graph.kind is GraphKind.RECURRENT]
    if recurrent != ([RECURRENT] if manifest.model.recurrent is not None else []):
        raise BundleError(f"a model with recurrent layers, and no other, has one graph {RECURRENT} for all of them")
    found = [graph.part for graph in manifest.graphs if graph.kind is GraphKind.LINEAR]
    if len(set(found)) < len(found):
        raise BundleError("two linear graphs are the same part, as older versions made them: compile the bundle again")
    for part in range(1, parts + 1):
        if part not in found:
            raise BundleError(f"the bundle has no linear graph {part} of {parts}")


def _check_side(spec: GraphSpec, side: str, tensors: Sequence[TensorSpec], wanted: Forms) -> None:
    names = [tensor.name for tensor in tensors]
    if sorted(names) != sorted(wanted):
        raise BundleError(f"graph {spec.name} has the {side}s {', '.join(names)}, it needs {', '.join(wanted)}")
    for tensor in tensors:
        check_form(spec, side, tensor, wanted[tensor.name])
