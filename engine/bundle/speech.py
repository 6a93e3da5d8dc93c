"""The graphs of a bundle that writes speech down: their tensors, and the memory that one sequence takes.

Legend: B = sequences side by side, N = tokens of each, P = places of the self cache, T = positions of the encoder,
H = heads, D = head size, V = vocabulary, A = heads whose attention follows the speech. B and N are free.
"""

from engine.bundle.manifest import GraphKind, Manifest
from engine.bundle.specs import ModelTask, SpeechSpec
from engine.bundle.tensors import IDS, LOGITS, MASK, Form, check_forms
from engine.errors import BundleError

FEATURES, POSITIONS, ALIGNMENT = "input_features", "position_ids", "alignment"
BATCH, TOKENS, COLUMNS = "batch", "tokens", "columns"
FLOAT_BYTES = 4


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


def cross_bytes(manifest: Manifest) -> int:
    """Bytes of keys and values of what one sequence has heard."""
    model = manifest.model
    return 2 * model.layers * model.kv_heads * model.head_dim * speech_of(manifest).positions * FLOAT_BYTES


def check_speech(manifest: Manifest) -> None:
    """BundleError unless there is one graph of each kind, with the tensors that the runtime fills and reads."""
    spec, kinds = speech_of(manifest), [graph.kind for graph in manifest.graphs]
    wanted = [GraphKind.SPEECH_ENCODER, GraphKind.SPEECH_DECODER]
    wanted += [GraphKind.SPEECH_ALIGNMENT] if spec.alignment else []
    if manifest.task is not ModelTask.TRANSCRIBE or manifest.kv_dtype != "float32":
        raise BundleError("a bundle of speech has the task transcribe and float32 caches")
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
        check_forms(graph, *graph_forms(manifest, graph.kind))


def graph_forms(manifest: Manifest, kind: GraphKind) -> tuple[dict[str, Form], dict[str, Form]]:
    """Type and dimensions of the inputs and of the outputs of a graph, by name."""
    model, spec = manifest.model, speech_of(manifest)
    heads, size, places = model.kv_heads, model.head_dim, manifest.max_context
    is_encoder = kind is GraphKind.SPEECH_ENCODER
    lead = (1,) if is_encoder else (BATCH,)
    cross, past, fresh = dict[str, Form](), dict[str, Form](), dict[str, Form]()
    for layer in range(model.layers):
        cross[cross_name("k", layer)] = ("float32", (*lead, heads, size, spec.positions))
        cross[cross_name("v", layer)] = ("float32", (*lead, heads, spec.positions, size))
        past[self_name("k", layer, "in")] = ("float32", (BATCH, heads, size, places))
        past[self_name("v", layer, "in")] = ("float32", (BATCH, heads, places, size))
        fresh[self_name("k", layer, "out")] = ("float32", (BATCH, heads, size, TOKENS))
        fresh[self_name("v", layer, "out")] = ("float32", (BATCH, heads, TOKENS, size))
    if is_encoder:
        return {FEATURES: ("float32", (1, spec.mels, spec.frames))}, cross
    rows: dict[str, Form] = dict.fromkeys((IDS, POSITIONS), ("int32", (BATCH, TOKENS)))
    if kind is GraphKind.SPEECH_ALIGNMENT:
        rows[MASK] = ("float32", (BATCH, 1, TOKENS, TOKENS))
        return rows | cross, {ALIGNMENT: ("float32", (BATCH, len(spec.alignment), TOKENS, spec.positions))}
    rows[MASK] = ("float32", (BATCH, 1, TOKENS, COLUMNS))
    return rows | past | cross, {LOGITS: ("float32", (BATCH, 1, model.vocab))} | fresh
