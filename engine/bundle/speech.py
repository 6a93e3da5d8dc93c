"""The graphs of a bundle that writes speech down: their tensors, and the memory that one sequence takes.

On a CPU several tokens of several texts share a run. On an NPU a run is one token of one text, as Qualcomm AI Hub cuts
the decoder: the graph gives the caches of the text's own tokens whole, moved by one place.

Legend: B = sequences side by side, N = tokens of each, P = places of the self cache, T = positions of the encoder,
H = heads, D = head size, V = vocabulary, A = heads whose attention follows the speech. B and N are free.
"""

from msgspec.structs import replace

from engine.bundle.manifest import ITEM_BYTES, GraphKind, GraphSpec, Manifest
from engine.bundle.model_spec import ModelSpec
from engine.bundle.specs import ModelTask, SpeechSpec
from engine.bundle.tensors import IDS, LOGITS, MASK, Form, check_forms
from engine.errors import BundleError

FEATURES, POSITIONS, ALIGNMENT = "input_features", "position_ids", "alignment"
BATCH, TOKENS = "batch", "tokens"
LAST_PLACES, TOTAL = "seqlens_k", "total_sequence_length"  # of each text its last place, of the longest all places


def speech_of(manifest: Manifest) -> SpeechSpec:
    """What makes the bundle one of speech; BundleError where it is none."""
    if manifest.speech is None:
        raise BundleError(f"{manifest.name} does not write speech down")
    return manifest.speech


def cross_name(side: str, layer: int) -> str:
    """Keys ("k") or values ("v") of what was heard: an output of the encoder, an input of the decoder."""
    return f"{side}_cache_cross_{layer}"


def self_name(side: str, layer: int, suffix: str) -> str:
    """Keys or values of the tokens before ("in") or of the new ones ("out")."""
    return f"{side}_cache_self_{layer}_{suffix}"


def is_cross(name: str) -> bool:
    """Whether a tensor is keys or values of what was heard."""
    return "_cache_cross_" in name


def twin_of(name: str) -> str:
    """The output whose content a decoder's cache of tokens gets, "" for other tensors."""
    return name.removesuffix("_in") + "_out" if "_cache_self_" in name and name.endswith("_in") else ""


def cross_bytes(manifest: Manifest) -> int:
    """Bytes of keys and values of what one sequence has heard."""
    model = manifest.model
    numbers = 2 * model.layers * model.kv_heads * model.head_dim * speech_of(manifest).positions
    return numbers * ITEM_BYTES[manifest.kv_dtype]


def check_speech(manifest: Manifest) -> None:
    """BundleError unless there is one graph of each kind, with the tensors that the runtime fills and reads."""
    spec, kinds = speech_of(manifest), [graph.kind for graph in manifest.graphs]
    wanted = [GraphKind.SPEECH_ENCODER, GraphKind.SPEECH_DECODER]
    wanted += [GraphKind.SPEECH_ALIGNMENT] if spec.alignment else []
    if manifest.task is not ModelTask.TRANSCRIBE or (manifest.npu is None and manifest.kv_dtype != "float32"):
        raise BundleError("a bundle of speech has the task transcribe and, for a CPU, float32 caches")
    if manifest.npu is not None and spec.alignment:
        raise BundleError("speech.alignment: no graph of an NPU tells what heads look at")
    if sorted(kinds) != sorted(wanted):
        raise BundleError(f"a bundle of speech has one graph of each kind: {', '.join(wanted)}")
    if spec.first_time + spec.positions >= manifest.model.vocab:
        raise BundleError(f"speech.no_timestamps leaves no {spec.positions + 1} times among the tokens")
    ids = (*spec.languages.values(), *spec.suppressed, *spec.first, spec.start, spec.end, spec.transcribe)
    if max((*ids, spec.translate, spec.previous, spec.no_speech)) >= manifest.model.vocab:
        raise BundleError(f"speech has a token id that is not below {manifest.model.vocab}")
    if any(layer >= manifest.model.layers or head >= manifest.model.heads for layer, head in spec.alignment):
        raise BundleError("speech.alignment names a head that the decoder does not have")
    for graph in manifest.graphs:
        if manifest.npu is None:
            if graph.kind is GraphKind.SPEECH_DECODER and any(tensor.name == MASK for tensor in graph.inputs):
                raise BundleError(
                    f"graph {graph.name} was made by an older version: make the bundle anew with `hexserve compile`"
                )
            check_forms(graph, *graph_forms(manifest.model, spec, manifest.max_context, graph.kind))
        else:
            check_forms(graph, *npu_forms(manifest, graph.kind))
            _check_moved(graph)


def graph_forms(
    model: ModelSpec, spec: SpeechSpec, places: int, kind: GraphKind
) -> tuple[dict[str, Form], dict[str, Form]]:
    """Type and dimensions of the inputs and of the outputs of a graph, by name."""
    heads, size = model.kv_heads, model.head_dim
    is_encoder = kind is GraphKind.SPEECH_ENCODER
    lead = (1,) if is_encoder else (BATCH,)
    cross, past, present = dict[str, Form](), dict[str, Form](), dict[str, Form]()
    for layer in range(model.layers):
        cross[cross_name("k", layer)] = ("float32", (*lead, heads, size, spec.positions))
        cross[cross_name("v", layer)] = ("float32", (*lead, heads, spec.positions, size))
        for side in ("k", "v"):
            past[self_name(side, layer, "in")] = ("float32", (BATCH, heads, places, size))
            present[self_name(side, layer, "out")] = past[self_name(side, layer, "in")]
    if is_encoder:
        return {FEATURES: ("float32", (1, spec.mels, spec.frames))}, cross
    rows: dict[str, Form] = dict.fromkeys((IDS, POSITIONS), ("int32", (BATCH, TOKENS)))
    if kind is GraphKind.SPEECH_ALIGNMENT:
        rows[MASK] = ("float32", (BATCH, 1, TOKENS, TOKENS))
        return rows | cross, {ALIGNMENT: ("float32", (BATCH, len(spec.alignment), TOKENS, spec.positions))}
    rows |= {LAST_PLACES: ("int32", (BATCH,)), TOTAL: ("int32", ())}
    return rows | past | cross, {LOGITS: ("float32", (BATCH, 1, model.vocab))} | present


def npu_forms(manifest: Manifest, kind: GraphKind) -> tuple[dict[str, Form], dict[str, Form]]:
    """The same where a run is one token of one text, of any type of numbers. P is one less than the longest text."""
    model, spec = manifest.model, speech_of(manifest)
    heads, size, places = model.kv_heads, model.head_dim, manifest.max_context - 1
    cross, past, moved = dict[str, Form](), dict[str, Form](), dict[str, Form]()
    for layer in range(model.layers):
        cross[cross_name("k", layer)] = ("", (heads, size, spec.positions))
        cross[cross_name("v", layer)] = ("", (heads, spec.positions, size))
        for side, form in (("k", (heads, size, places)), ("v", (heads, places, size))):
            past[self_name(side, layer, "in")] = moved[self_name(side, layer, "out")] = ("", form)
    if kind is GraphKind.SPEECH_ENCODER:
        return {FEATURES: ("", (spec.mels, spec.frames))}, cross
    rows: dict[str, Form] = {IDS: ("int32", ()), POSITIONS: ("int32", ()), MASK: ("", (manifest.max_context,))}
    return rows | past | cross, {LOGITS: ("", (model.vocab,))} | moved


def _check_moved(graph: GraphSpec) -> None:
    """Caches go from output to input as they are, so both must be encoded alike."""
    outputs = {tensor.name: tensor for tensor in graph.outputs}
    for tensor in graph.inputs:
        twin = twin_of(tensor.name)
        if twin and replace(outputs[twin], name=tensor.name, shape=tensor.shape) != tensor:
            raise BundleError(f"graph {graph.name}: {tensor.name} and {twin} hold other numbers")
