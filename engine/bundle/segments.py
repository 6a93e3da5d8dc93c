"""The tensors of a segmented bundle: of its linear graphs, its attention graphs, its adapters and recurrent layers. An
adapter adds ((x a^T) * mask) b to y. J = ranks of all adapters that a step has rows of, side by side; the mask [1, N,
J] says which of them are a row's own."""

from collections.abc import Iterable

from engine.bundle.manifest import GraphKind, Manifest
from engine.bundle.model_spec import PLAIN_ATTENTION, LayerAttention, ModelSpec
from engine.bundle.specs import LoraModule, RecurrentSpec
from engine.bundle.tensors import FREE_COLUMNS, FREE_LOGIT_ROWS, FREE_ROWS, IDS, LOGITS, ROTARY, Form, check_forms
from engine.bundle.vision import EMBEDDED, EMBEDS, deepstack_name
from engine.bundle.weight_files import ROUNDED
from engine.errors import BundleError

FLOAT, HALF = "float32", "float16"
EXPERTS = "experts"  # the numbers of those that each row of a layer chose
A, B, MASK = "lora_a_", "lora_b_", "lora_mask_"
LAYER_INPUTS = "layer_inputs"  # [rows, layers * numbers]: what each layer takes of a row beside the stream
GAIN = "query_gain"  # [1, rows, 1], what queries are multiplied with
SINKS = "head_sink"  # [heads], from the start of a layer to its attention


def ranks_axis(module: LoraModule) -> str:
    """The name of the free axis J of one matrix."""
    return f"lora_ranks_{module.name}"


def lora_forms(modules: Iterable[LoraModule], rows: str) -> dict[str, Form]:
    """Inputs of a graph whose layers these matrices are in."""
    forms: dict[str, Form] = {}
    for module in modules:
        ranks = ranks_axis(module)
        shapes = {A: (ranks, module.inputs), B: (ranks, module.outputs), MASK: (1, rows, ranks)}
        forms |= {kind + module.name: (FLOAT, shape) for kind, shape in shapes.items()}
    return forms


RECURRENT = "recurrent"
CONV_IN, DECAY, BETA, OUT = "conv_in", "decay", "beta", "recurrent_out"
GATE_IN, GATE_OUT = "gate_in", "gate_out"  # of what attention or recurrence gives, from the layer's start to its end
CONV_WEIGHT, TAIL, MEMORY = "conv_weight", "conv_state", "state"
TAIL_OUT, MEMORY_OUT = "conv_state_out", "state_out"


def recurrent_forms(spec: RecurrentSpec) -> tuple[dict[str, Form], dict[str, Form]]:
    """Inputs and outputs of the graph that takes rows of one sequence, and its state, one layer further."""
    tail: Form = (FLOAT, (1, *spec.tail_shape))
    memory: Form = (FLOAT, (1, *spec.memory_shape))
    weight: Form = (FLOAT, (spec.channels, 1, spec.columns))
    inputs = _step_forms(spec) | {CONV_WEIGHT: weight, TAIL: tail}
    outputs: dict[str, Form] = {OUT: (FLOAT, (1, FREE_ROWS, spec.value_width)), TAIL_OUT: tail}
    return (inputs | {MEMORY: memory}, outputs | {MEMORY_OUT: memory}) if spec.has_memory else (inputs, outputs)


def _step_forms(spec: RecurrentSpec) -> dict[str, Form]:
    heads: Form = (FLOAT, (1, FREE_ROWS, spec.value_heads))
    steps: dict[str, Form] = {CONV_IN: (FLOAT, (1, FREE_ROWS, spec.channels))}
    return steps | {DECAY: heads, BETA: heads} if spec.has_memory else steps


SHARED_DATA, LINEAR_DATA = "shared.data", "linear.data"  # embedding, norms and biases; the matrices
ATTENTION, BASE_ATTENTION, MASKED_ATTENTION = "attention", "attention_base", "attention_masked"
GROUPED_ATTENTION = "attention_grouped"  # of few rows over float caches
# Queries of a key head from which on it is faster, measured on two cores for 14 heads on 2, 9 on 3, 32 on 8, 16 on 8.
LEAST_PRODUCTS = 3
INTEGER = "int32"
# For int8 caches, over which the operator is fast for few rows alone, and float16 ones, over which it never is.
ATTENTION_CHUNK = "attention_chunk"
ATTENTION_KINDS = {FLOAT: (ATTENTION,), HALF: (ATTENTION_CHUNK,), ROUNDED: (ATTENTION, ATTENTION_CHUNK)}  # by caches
_WINDOW = "_window_"


def attention_name(graph: str, form: LayerAttention) -> str:
    """The name of a graph for layers of that window and of those heads."""
    heads = f"_heads_{form.kv_heads}_of_{form.head_dim}" if form.kv_heads or form.head_dim else ""
    return f"{graph}{_WINDOW}{form.window}{heads}" if form.window else f"{graph}{heads}"


IN_PLACE_ROWS = 8  # most rows of a sequence that the first computes; measured on two cores, at 16 heads on 8 of 128
Forms = dict[str, Form]


def linear_forms(manifest: Manifest, part: int) -> tuple[Forms, Forms]:
    model, last = manifest.model, manifest.model.layers + 1
    rows = FREE_LOGIT_ROWS if part == last else FREE_ROWS
    inputs: Forms = {IDS: (INTEGER, (1, rows))}
    if part == 1 and manifest.vision is not None:
        inputs |= {EMBEDS: (FLOAT, (1, rows, model.hidden)), EMBEDDED: (FLOAT, (1, rows, 1))}
    if part > 1:
        hidden: Form = (FLOAT, (1, rows, model.stream_width))
        inputs = {"hidden_in": hidden, **_mixed_forms(model, part - 2, rows), **_layer_input_forms(model, rows)}
        if manifest.vision is not None and part - 2 < manifest.vision.deepstack:
            inputs[deepstack_name(part - 2)] = hidden
    takes = {True: part < last, False: part > 1}  # the start of a layer, the end of the one before
    inputs |= lora_forms((module for module in manifest.lora if takes[module.starts_layer]), rows)
    # Of the graph that ends a layer, where that has experts.
    has_experts = model.experts is not None and part - 2 in model.experts.layers
    chosen: Forms = {EXPERTS: ("int64", (1, rows, model.experts.chosen))} if model.experts and has_experts else {}
    if part == last:
        return inputs, {LOGITS: (FLOAT, (1, rows, manifest.row_outputs)), **chosen}
    outputs: Forms = {"hidden_out": (FLOAT, (1, rows, model.stream_width)), **chosen}
    if part == 1:
        outputs |= _layer_input_forms(model, rows)
    if (recurrent := model.recurrence_of(part - 1)) is not None:
        outputs |= _step_forms(recurrent) | {GATE_OUT: (FLOAT, (1, FREE_ROWS, recurrent.value_width))}
    if part - 1 not in model.attention_layers:
        return inputs, outputs
    if (rope := model.rope_of(part - 1)) is not None:
        inputs |= dict.fromkeys(ROTARY, (FLOAT, (1, 1, rows, rope.rotary_dim // 2)))
        inputs |= {GAIN: (FLOAT, (1, rows, 1))} if rope.gain else {}
    fresh = _fresh_forms(model, model.attention_of(part - 1))
    if model.owner_of(part - 1) != part - 1:
        fresh = {"query": fresh["query"]}
    return inputs, outputs | fresh | _gate_forms(model, GATE_OUT, rows) | _sink_forms(model)


def _layer_input_forms(model: ModelSpec, rows: str) -> Forms:
    width = model.layers * model.layer_inputs
    return {LAYER_INPUTS: (FLOAT, (1, rows, width))} if width else {}


def _sink_forms(model: ModelSpec) -> Forms:
    return {SINKS: (FLOAT, (model.heads,))} if model.has_sinks else {}


def _mixed_forms(model: ModelSpec, layer: int, rows: str) -> Forms:
    recurrent, found = model.recurrence_of(layer), Forms()
    if recurrent is not None:
        found |= dict.fromkeys((OUT, GATE_IN), (FLOAT, (1, rows, recurrent.value_width)))
    if layer not in model.attention_layers:
        return found
    width = model.heads_of(model.attention_of(layer)).query_width
    return {**found, "attended": (FLOAT, (1, rows, width)), **_gate_forms(model, GATE_IN, rows)}


def _gate_forms(model: ModelSpec, name: str, rows: str) -> Forms:
    return {name: (FLOAT, (1, rows, model.heads * model.head_dim))} if model.has_output_gate else {}


def attention_forms(model: ModelSpec, kv_dtype: str, form: LayerAttention = PLAIN_ATTENTION) -> tuple[Forms, Forms]:
    """Inputs and outputs of the attention graph of such layers; seqlens_k counts past columns + rows - 1. It writes the
    fresh columns behind the past ones. int8 caches come with their scales."""
    heads = model.heads_of(form)
    cache: Form = (kv_dtype, (1, heads.kv_heads, FREE_COLUMNS, heads.head_dim))
    lengths: Forms = {"seqlens_k": (INTEGER, (1,)), "total_sequence_length": (INTEGER, ())}
    inputs = _fresh_forms(model, form) | {"past_key": cache, "past_value": cache} | lengths
    inputs |= _scale_forms(model, kv_dtype) | _sink_forms(model)
    attended: Form = (FLOAT, (1, FREE_ROWS, heads.query_width))
    return inputs, {"attended": attended, "present_key": cache, "present_value": cache}


def grouped_forms(model: ModelSpec, kv_dtype: str, form: LayerAttention = PLAIN_ATTENTION) -> tuple[Forms, Forms]:
    """Of attention that reads its fresh columns from the caches, too."""
    fresh, outputs = attention_forms(model, kv_dtype, form)
    inputs = {name: fresh[name] for name in ("query", "past_key", "past_value")}
    return inputs | {"mask": (FLOAT, (FREE_ROWS, 1, FREE_COLUMNS))}, {"attended": outputs["attended"]}


def grouped_names(model: ModelSpec, kv_dtype: str) -> dict[str, LayerAttention]:
    """The graphs of attention of few rows that there may be, with the layers that they are for: those whose query
    heads share key heads, and see all columns by scores as they are."""
    found = dict[str, LayerAttention]()
    if kv_dtype == ROUNDED or model.has_sinks:
        return found
    for form in model.layer_forms:
        heads = model.heads_of(form)
        if not form.window and heads.heads > heads.kv_heads:
            found[attention_name(GROUPED_ATTENTION, form)] = form
    return found


def masked_names(model: ModelSpec) -> tuple[str, ...]:
    """The graphs of attention under a mask; columns that several sequences read are of layers without windows."""
    return (MASKED_ATTENTION,) if any(model.layer_windows) else (BASE_ATTENTION, MASKED_ATTENTION)


def masked_forms(model: ModelSpec, kv_dtype: str) -> tuple[Forms, Forms]:
    """Of attention over a sequence's own columns; queries and what they come to by key heads."""
    inputs, base = base_forms(model, kv_dtype)
    cache: Form = (kv_dtype, (model.kv_heads, 1, FREE_COLUMNS, model.head_dim))
    own: Forms = {"keys": cache, "values": cache, "mask": (FLOAT, (FREE_ROWS, FREE_COLUMNS))}
    return inputs | own | base, {"attended": base["base_attended"]}


def base_forms(model: ModelSpec, kv_dtype: str) -> tuple[Forms, Forms]:
    """Of attention over shared columns; base_weight is the logarithm of what their scores add up to."""
    heads = (FREE_ROWS, model.kv_heads, model.heads // model.kv_heads)
    wide: Form = (FLOAT, (*heads, model.head_dim))
    cache: Form = (kv_dtype, (1, model.kv_heads, FREE_COLUMNS, model.head_dim))
    inputs: Forms = {"query": wide, "keys": cache, "values": cache, "mask": (FLOAT, (FREE_ROWS, 1, FREE_COLUMNS))}
    return inputs | _scale_forms(model, kv_dtype), {"base_attended": wide, "base_weight": (FLOAT, (*heads, 1))}


def chunk_forms(model: ModelSpec, kv_dtype: str, form: LayerAttention = PLAIN_ATTENTION) -> tuple[Forms, Forms]:
    """Of the graph that gives the fresh columns as rows of what caches hold instead of writing them."""
    inputs, outputs = attention_forms(model, kv_dtype, form)
    codes: Form = (kv_dtype, (1, FREE_ROWS, model.kv_heads * model.head_dim))
    return inputs, {"attended": outputs["attended"], "key_codes": codes, "value_codes": codes}


def _scale_forms(model: ModelSpec, kv_dtype: str) -> Forms:
    if kv_dtype != ROUNDED:
        return {}
    scale: Form = (FLOAT, (1, model.kv_heads, 1, model.head_dim))
    return {"key_scale": scale, "value_scale": scale}


def _fresh_forms(model: ModelSpec, form: LayerAttention) -> Forms:
    heads = model.heads_of(form)
    key: Form = (FLOAT, (1, FREE_ROWS, heads.key_width))
    return {"query": (FLOAT, (1, FREE_ROWS, heads.query_width)), "key": key, "value": key}


def _attention_graphs(manifest: Manifest) -> dict[str, tuple[Forms, Forms]]:
    given = manifest.model, manifest.kv_dtype
    found = {BASE_ATTENTION: base_forms(*given), MASKED_ATTENTION: masked_forms(*given)}
    for name, form in grouped_names(*given).items():
        found[name] = grouped_forms(*given, form)
    for form in manifest.model.layer_forms:
        found[attention_name(ATTENTION, form)] = attention_forms(*given, form)
        found[attention_name(ATTENTION_CHUNK, form)] = chunk_forms(*given, form)
    return found


def check_segments(manifest: Manifest) -> None:
    """BundleError names what is missing, or the graph and the tensor that is not as the model wants it."""
    parts = manifest.model.layers + 1
    _check_whole(manifest, parts)
    attention = _attention_graphs(manifest)
    for spec in manifest.graphs:
        if spec.kind is GraphKind.ATTENTION:
            inputs, outputs = attention[spec.name]
        elif spec.kind is GraphKind.RECURRENT and manifest.model.recurrent is not None:
            inputs, outputs = recurrent_forms(manifest.model.recurrent)
        elif spec.kind is GraphKind.LINEAR and spec.parts == parts and spec.part <= parts:
            inputs, outputs = linear_forms(manifest, spec.part)
        else:
            raise BundleError(
                f"graph {spec.name} is {spec.kind} {spec.part} of {spec.parts} among {parts} linear parts"
            )
        check_forms(spec, inputs, outputs)


def _check_whole(manifest: Manifest, parts: int) -> None:
    if manifest.kv_dtype not in ATTENTION_KINDS:
        known = ", ".join(ATTENTION_KINDS)
        raise BundleError(f"a bundle of segments has caches of {known}, not of {manifest.kv_dtype}")
    names = sorted(graph.name for graph in manifest.graphs if graph.kind is GraphKind.ATTENTION)
    kinds, forms = ATTENTION_KINDS[manifest.kv_dtype], manifest.model.layer_forms
    wanted = sorted({attention_name(kind, form) for kind in kinds for form in forms})
    masked, grouped = masked_names(manifest.model), grouped_names(manifest.model, manifest.kv_dtype)
    others = sorted(name for name in names if name not in grouped)  # bundles made earlier have none of these
    if others not in (wanted, sorted([*wanted, *masked])):
        raise BundleError(
            f"a bundle of segments has one attention graph for all layers of a window, by caches of "
            f"{manifest.kv_dtype} {' and '.join(wanted)}; this one has {', '.join(others)}"
        )
    if manifest.vision is not None and manifest.vision.both_ways and others == wanted:
        raise BundleError(f"rows of an image see each other both ways: the bundle needs the graph {MASKED_ATTENTION}")
    recurrent = [graph.name for graph in manifest.graphs if graph.kind is GraphKind.RECURRENT]
    if recurrent != ([RECURRENT] if manifest.model.recurrent is not None else []):
        raise BundleError(f"a model with recurrent layers, and no other, has one graph {RECURRENT} for all of them")
    found = [graph.part for graph in manifest.graphs if graph.kind is GraphKind.LINEAR]
    if len(set(found)) < len(found):
        raise BundleError("two linear graphs are the same part, as older versions made them: compile the bundle again")
    if missing := set(range(1, parts + 1)) - set(found):
        raise BundleError(f"the bundle has no linear graph {min(missing)} of {parts}")
