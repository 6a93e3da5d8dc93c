"""A Whisper's folder of Qualcomm AI Hub read into a manifest and its wrappers. Nothing is written here. Two binaries,
as its runtimes lay them out: `encoder.bin` and `decoder.bin` (qnn_context_binary, voice_ai), or
`encoder_onnx/encoder.bin` and `decoder_onnx/decoder.bin` (precompiled_qnn_onnx). Words come from `vocab.bin` (voice_ai)
or from a tokenizer.json that is put there; which chip the binaries are for, from metadata.json."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tokenizers import Tokenizer

from engine.bundle.manifest import FORMAT_VERSION, GraphKind, GraphSpec, Manifest, NpuSpec, TensorSpec, TextSpec
from engine.bundle.model_spec import ModelSpec
from engine.bundle.specs import ModelTask, SpeechSpec
from engine.bundle.speech import FEATURES, check_speech, cross_name, self_name
from engine.bundle.tensors import LOGITS
from engine.errors import BundleError, CompileError
from engine.files import TOKENIZER_BYTES, is_regular, read_bytes, read_text, reading
from engine.genie.read import TARGETS, USUAL_CHIP, GenieBundle, Wrapper, qnn_version
from engine.genie.text import TOKENIZER_FILE, GenieText, read_metadata
from engine.models.encoder_families import NO_ROTATION
from engine.models.speech import CONVOLUTION_STRIDE
from engine.runtime.qnn.binary import BinaryInfo, ContextNode
from engine.runtime.qnn.reader import check_age
from engine.speech.special_tokens import Window, WordList, never_first, never_spoken, speech_spec, tokenizer_of
from engine.text.tokenizer import parsed

PARTS = {"encoder": GraphKind.SPEECH_ENCODER, "decoder": GraphKind.SPEECH_DECODER}
WORDS_FILE = "vocab.bin"
END = b"\0"  # of a word; the one that is this byte alone has no other
MOST_LAYERS = 1024


def is_hub_speech(folder: Path) -> bool:
    """Whether both binaries of a Whisper lie there."""
    return all(is_regular(_binary(folder, part)) for part in PARTS)


def read_hub_speech(folder: Path, describe: Callable[[Path], BinaryInfo], runtime: str = "") -> GenieBundle:
    """Read such a folder. describe: a binary's tensors; runtime: the installed QNN's version, '' = do not compare.
    BundleError names the file or the tensor that cannot be served, and why."""
    binaries = {f"{part}.bin": _binary(folder, part) for part in PARTS}
    infos = {name: describe(path) for name, path in binaries.items()}
    for name, info in infos.items():
        check_age(name, info, runtime)
        if len(info.graphs) != 1:
            raise BundleError(f"{name} holds {len(info.graphs)} graphs, one is expected")
    wrappers = tuple(_wrapper(part, kind, infos[f"{part}.bin"]) for part, kind in PARTS.items())
    encoder, decoder = (_tensors(wrapper.graph) for wrapper in wrappers)
    model, window = _model(encoder, decoder), _window(encoder, decoder)
    tokenizer = _tokenizer(folder, model.vocab, window.positions)
    spec, metadata = _special(tokenizer, model.vocab, window), read_metadata(folder)
    chipset = metadata.group("chipset_attributes")
    chip = (
        chipset.integer("soc_model", 0, 1 << 16, USUAL_CHIP[0]),
        chipset.integer("htp_version", 1, 1000, USUAL_CHIP[1]),
    )
    keys = _taken(decoder, self_name("k", 0, "in"))
    text = TextSpec(TOKENIZER_FILE, None, (spec.end,))
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=folder.resolve().name,
        target=TARGETS.get(chip, f"v{chip[1]}"),
        quant=metadata.text("precision", "").lower() or keys.dtype,
        split="none",
        created=int(time.time()),
        model=model,
        graphs=tuple(wrapper.graph for wrapper in wrappers),
        kv_dtype=keys.dtype,
        max_context=int(keys.shape[-1]) + 1,
        text=text,
        files={},
        versions={"qnn": qnn_version(infos)},
        source="AI Hub",
        task=ModelTask.TRANSCRIBE,
        speech=spec,
        npu=NpuSpec(
            *chip,
            binaries={name: (info.graphs[0].name,) for name, info in infos.items()},
            chains={part: ((f"{part}.bin", infos[f"{part}.bin"].graphs[0].name),) for part in PARTS},
            sdk=qnn_version(infos),
        ),
    )
    check_speech(manifest)
    return GenieBundle(manifest, wrappers, binaries, GenieText(tokenizer.to_str(), None, text))


def _binary(folder: Path, part: str) -> Path:
    alone = folder / f"{part}.bin"
    return alone if is_regular(alone) else folder / f"{part}_onnx" / f"{part}.bin"


def _wrapper(part: str, kind: GraphKind, info: BinaryInfo) -> Wrapper:
    (graph,) = info.graphs
    inputs, outputs = (tuple(tensor.spec() for tensor in side) for side in (graph.inputs, graph.outputs))
    names, results = (tuple(tensor.name for tensor in side) for side in (inputs, outputs))
    spec = GraphSpec(part, f"{part}.onnx", kind, 1, 1, inputs, outputs)
    return Wrapper(spec, (ContextNode(graph.name, f"{part}.bin", names, results, sdk_version=info.build_id),))


def _tensors(graph: GraphSpec) -> dict[str, TensorSpec]:
    return {tensor.name: tensor for tensor in (*graph.inputs, *graph.outputs)}


def _taken(tensors: Mapping[str, TensorSpec], name: str) -> TensorSpec:
    if name not in tensors:
        raise BundleError(f"the binaries are no Whisper's: they have no tensor {name}")
    return tensors[name]


def _axes(tensors: Mapping[str, TensorSpec], name: str, count: int) -> list[int]:
    found = [int(size) for size in _taken(tensors, name).shape if size != 1]
    if len(found) != count:
        raise BundleError(f"tensor {name} has the shape {list(tensors[name].shape)}, {count} long axes are expected")
    return found


def _model(encoder: Mapping[str, TensorSpec], decoder: Mapping[str, TensorSpec]) -> ModelSpec:
    heads, size, _ = _axes(decoder, cross_name("k", 0), 3)
    (vocab,) = _axes(decoder, LOGITS, 1)
    layers = next(layer for layer in range(MOST_LAYERS) if cross_name("k", layer) not in encoder)
    return ModelSpec("whisper", layers, heads * size, heads, heads, size, 0, vocab, NO_ROTATION, tied_head=True)


def _window(encoder: Mapping[str, TensorSpec], decoder: Mapping[str, TensorSpec]) -> Window:
    mels, frames = _axes(encoder, FEATURES, 2)
    places = _axes(decoder, cross_name("k", 0), 3)[-1]
    if frames != CONVOLUTION_STRIDE * places:
        raise BundleError(f"tensor {FEATURES} has {frames} frames for {places} positions, twice as many are expected")
    return Window(mels, frames, places)


def _tokenizer(folder: Path, vocab: int, positions: int) -> Tokenizer:
    path = folder / WORDS_FILE
    if not is_regular(path):
        return _own_tokenizer(folder)
    with reading(path):
        words = words_of(read_bytes(path, TOKENIZER_BYTES))
    try:
        return tokenizer_of(WordList(words, vocab, positions, WORDS_FILE))
    except CompileError as error:
        raise BundleError(str(error)) from error


def _own_tokenizer(folder: Path) -> Tokenizer:
    path = folder / TOKENIZER_FILE
    if not is_regular(path):
        raise BundleError(
            f"{folder} has the binaries of a Whisper and no words: put its {TOKENIZER_FILE} or {WORDS_FILE} there"
        )
    with reading(path):
        content = read_text(path, TOKENIZER_BYTES)
    try:
        return parsed(content)
    except ValueError as error:
        raise BundleError(f"{path} is not a tokenizer: {error}") from error


def words_of(content: bytes) -> list[bytes]:
    """Words that each end with a zero byte, but for the one that is this byte."""
    return [word or END for word in content.removesuffix(END).split(END)]


def _special(tokenizer: Tokenizer, vocab: int, window: Window) -> SpeechSpec:
    end = tokenizer.token_to_id("<|endoftext|>")
    decoding = {"suppress_tokens": never_spoken(tokenizer), "begin_suppress_tokens": never_first(tokenizer, end or 0)}
    try:
        return speech_spec(tokenizer, vocab, window, decoding)
    except CompileError as error:
        raise BundleError(str(error)) from error
