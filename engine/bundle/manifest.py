"""manifest.json: a bundle describes itself completely. Written by the compiler, read by both serving processes."""

import hashlib
import math
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle import specs
from engine.bundle.answer_format import AnswerFormat
from engine.bundle.model_spec import ModelSpec, RotationKind
from engine.bundle.vision import VisionSpec
from engine.errors import BundleError
from engine.files import MANIFEST_BYTES, confined, is_regular, one_line, open_regular, read_bytes, reading, shown

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
GRAPH_NAME = r"^(?:[A-Za-z]+_)?ar(\d+)_cl(\d+)_(\d+)_of_(\d+)$"


class GraphKind(StrEnum):
    """What a graph computes, told from its tensors by `engine/genie/parts.py`."""

    LUT = "lut"  # input_ids -> hidden
    DECODER = "decoder"  # layers, with or without the embedding in front
    DECODER_PREFILL = "decoder_prefill"  # layers; keys and values are its only outputs, so a step of it gives no logits
    LMHEAD = "lmhead"  # hidden -> logits
    DEFAULT = "default"  # everything in one graph
    FUSED = "fused"  # a prompt's rows over its cache and decodes over theirs, see `engine/bundle/fused.py`
    LINEAR = "linear"  # what lies between two attentions, of a segmented bundle
    ATTENTION = "attention"  # one sequence's queries over its own cache, the same graph for every layer
    RECURRENT = "recurrent"  # one sequence's rows over its own state, the same graph for every recurrent layer
    ENCODER = "encoder"  # everything of a text encoder, no caches: rows see each other as the mask says
    SPEECH_ENCODER = "speech_encoder"  # frames of sound -> keys and values that every token of their text sees
    SPEECH_DECODER = "speech_decoder"  # tokens of several texts side by side, each over its own caches
    SPEECH_ALIGNMENT = "speech_alignment"  # a whole text -> how far each of its tokens looks at each frame
    IMAGE_ENCODER = "image_encoder"
    NONE = "none"


class TensorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One graph input or output. A string dimension is free: 'rows', 'past', 'context', 'columns' or 'logit_rows'.
    Quantised tensors: real = scale * (q - zero_point), ONNX sign."""

    name: specs.Name
    dtype: specs.Name
    shape: Annotated[tuple[specs.Axis | specs.Text, ...], Meta(max_length=8)]
    scale: specs.Scale | None = None
    zero_point: Annotated[int, Meta(ge=-65536, le=65536)] | None = None

    @property
    def encoding(self) -> tuple[str, float | None, int | None]:
        return self.dtype, self.scale, self.zero_point

    def __str__(self) -> str:
        scale = "" if self.scale is None else f", scale {self.scale:.6g}, zero point {self.zero_point}"
        return f"{self.dtype} {list(self.shape)}{scale}"


class GraphSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One ONNX file. `rows` (AR) and `context` (CL) are None when free; layers are absolute and inclusive."""

    name: specs.Name
    file: specs.Name
    kind: GraphKind
    part: specs.Part
    parts: specs.Part
    inputs: Annotated[tuple[TensorSpec, ...], Meta(max_length=1 << 16)]
    outputs: Annotated[tuple[TensorSpec, ...], Meta(max_length=1 << 16)]
    rows: specs.Rows | None = None
    context: specs.Tokens | None = None
    first_layer: specs.Count | None = None
    last_layer: specs.Count | None = None


class TextSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything needed to turn text into tokens and back. Files are relative to the bundle."""

    tokenizer: specs.Name
    chat_template: specs.Name | None
    stop_ids: Annotated[tuple[specs.TokenId, ...], Meta(max_length=4096)]
    bos_token: specs.Text | None = None
    eos_token: specs.Text | None = None
    add_bos: bool = False
    prefix: Annotated[tuple[specs.TokenId, ...], Meta(max_length=16)] = ()  # stands before a plain text in place of BOS
    answer: AnswerFormat | None = None  # how the model writes answers; None in older bundles or without a template
    stop_texts: Annotated[tuple[specs.Text, ...], Meta(max_length=4096)] = ()  # as `stop_ids`, of several tokens
    sampling: specs.UsualSampling = specs.UsualSampling()  # what requests leave open

    @property
    def writes(self) -> AnswerFormat:
        """How the model writes answers; plain text where nothing is known."""
        return self.answer or AnswerFormat()


class DiffusionSpec(msgspec.Struct, frozen=True):
    """What a block-diffusion model was trained with: the tokens of a block, and the token that stands for none yet."""

    block_length: Annotated[int, Meta(ge=1, le=1024)]
    mask_token: specs.TokenId


class FileEntry(msgspec.Struct, frozen=True):
    """Size in bytes and sha256 (hex) of one file of the bundle."""

    bytes: specs.Count
    sha256: specs.Name


class NpuSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an NPU bundle's binaries are. Chip in Qualcomm's numbers."""

    soc_model: specs.Count  # X Elite is 60
    htp_arch: specs.Count  # Hexagon v73 is 73
    binaries: dict[specs.Name, tuple[specs.Name, ...]]  # file -> graphs inside; several share their weights
    chains: dict[specs.Name, tuple[tuple[specs.Name, specs.Name], ...]] = {}  # by graph: (binary, graph)s
    sdk: str = ""  # the QNN version that made them
    parity_on: str = ""  # what the figures of `Manifest.parity` were measured on
    not_genie: str = ""  # why Genie cannot run the bundle, "" when it can

    @property
    def shared(self) -> tuple[str, ...]:
        """The binaries that hold several graphs."""
        return tuple(name for name, graphs in self.binaries.items() if len(graphs) > 1)


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole description."""

    format_version: int
    name: specs.Name
    target: specs.Text
    quant: specs.Text
    split: specs.Text
    created: specs.Count
    model: ModelSpec
    graphs: Annotated[tuple[GraphSpec, ...], Meta(max_length=4096)]
    kv_dtype: specs.Name
    max_context: specs.Tokens  # most of one sequence
    text: TextSpec
    files: dict[specs.Name, FileEntry]
    versions: dict[str, str]
    parity: dict[str, float] = {}  # the compiler's own check
    source: str = ""
    npu: NpuSpec | None = None
    kv_scales: specs.Text = ""  # file of the scales of int8 caches in a segmented bundle, "" where caches have none
    fused: specs.FusedSpec | None = None  # what fused prefill/decode graphs have in common
    lora: Annotated[tuple[specs.LoraModule, ...], Meta(max_length=64)] = ()  # matrices that adapters may change
    head_weight: specs.Text = ""  # file of the weights that an LM head takes as an input, "" where its graph holds them
    conv_weights: specs.Text = ""  # file of the convolutions of recurrent layers, "" where there are none
    diffusion: DiffusionSpec | None = None  # None for a model that generates one token after the other
    forecast: specs.ForecastSpec | None = None  # how the model guesses its own next tokens, if it does
    task: specs.ModelTask = specs.ModelTask.GENERATE
    pooling: specs.PoolingSpec | None = None  # of a bundle that embeds
    rerank: specs.RerankSpec | None = None  # of one that scores documents
    encoder: specs.EncoderSpec | None = None  # of one whose rows see each other both ways and that generates nothing
    speech: specs.SpeechSpec | None = None  # of one that writes what is said
    quality: specs.QualitySpec | None = None  # of 4-bit codes that were chosen, None where they are rounded to nearest
    embedding: specs.TableSpec | None = None  # of tokens where graphs take embeddings in place of ids
    layer_embedding: specs.TableSpec | None = None  # what each layer gets of a token besides
    window: specs.UnknownSize = 0  # how far back the rows of window caches see, 0 = there are none
    sample: specs.SampleSpec | None = None  # what is tried at load, None where nothing is
    vision: VisionSpec | None = None  # None for a model that reads no images
    image_graph: GraphSpec | None = None  # of images of one size
    head_basis: specs.Text = ""  # factors and turns that keys and values are stored with
    codes: specs.Text = ""  # what became of weights that came quantised, "" where they came as floats or blocks of GGUF

    @property
    def every_graph(self) -> tuple[GraphSpec, ...]:
        """Those of the text, then that of images if it has one size."""
        return self.graphs if self.image_graph is None else (*self.graphs, self.image_graph)

    @property
    def row_outputs(self) -> int:
        """Numbers of a row that the last graph gives as its "logits": of an embedder the normed hidden state."""
        return self.model.hidden if self.task is specs.ModelTask.EMBED else self.model.vocab

    @property
    def generates(self) -> bool:
        """Whether it continues texts: not models of vectors, encoders that score, nor what writes speech down."""
        return self.task is not specs.ModelTask.EMBED and self.encoder is None and self.speech is None

    @property
    def capabilities(self) -> tuple[specs.Capability, ...]:
        """What requests may ask of it."""
        answer = self.text.writes
        told = {
            specs.Capability.COMPLETION: self.generates,
            specs.Capability.TOOLS: self.generates and answer.calls is not None,
            specs.Capability.REASONING: self.generates and answer.reasoning is not None,
            specs.Capability.VISION: self.vision is not None,
            specs.Capability.EMBEDDINGS: self.task is specs.ModelTask.EMBED,
            specs.Capability.RERANK: self.task is specs.ModelTask.RERANK,
            specs.Capability.TRANSCRIPTION: self.task is specs.ModelTask.TRANSCRIBE,
        }
        return tuple(capability for capability, is_there in told.items() if is_there)

    @property
    def is_free_shape(self) -> bool:
        """True when one graph serves every number of rows and columns (CPU bundles by default)."""
        return any(graph.rows is None for graph in self.graphs if graph.kind is not GraphKind.LMHEAD)

    @property
    def is_segmented(self) -> bool:
        """True when a step is linear graphs over all rows with an attention run for each sequence between them."""
        return any(graph.kind is GraphKind.ATTENTION for graph in self.graphs)

    @property
    def reads_whole_context(self) -> bool:
        """True when graphs have a row for every column and no past: each step computes all of a sequence again."""
        layers = [graph for graph in self.graphs if graph.kind in (GraphKind.DECODER, GraphKind.DEFAULT)]
        return bool(layers) and all(graph.rows is not None and graph.rows == graph.context for graph in layers)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of key and value cache one token takes over all layers; an encoder keeps none."""
        return self.model.cache_numbers * ITEM_BYTES[self.kv_dtype] if self.encoder is None else 0

    @property
    def state_bytes_per_sequence(self) -> int:
        """Bytes that are carried for one sequence, however long it is: of recurrent layers, or all that it has."""
        if self.model.recurrent is not None:
            return self.model.recurrent.state_bytes
        sizes: Counter[tuple[int | None, int | None]] = Counter()
        for graph in self.graphs if self.is_serial else ():
            sizes[graph.rows, graph.context] += sum(_bytes(item) for item in graph.inputs if _is_carried(item.name))
        return max(sizes.values(), default=0)

    @property
    def is_serial(self) -> bool:
        """Whether a run of its graphs is of one sequence: window caches and states have no room for another one's."""
        return any(_is_carried(item.name, SERIAL) for graph in self.graphs for item in graph.inputs)


SERIAL = ("swa_key_", "swa_value_", "conv_state_", "recurrent_state_")
CARRIED = (*SERIAL, "past_")


def _is_carried(name: str, names: tuple[str, ...] = CARRIED) -> bool:
    return name.startswith(names) and name.endswith("_in")


def _bytes(tensor: TensorSpec) -> int:
    return math.prod(dim for dim in tensor.shape if isinstance(dim, int)) * ITEM_BYTES.get(tensor.dtype, 1)


ITEM_BYTES = {"float32": 4, "float16": 2, "uint16": 2, "int16": 2, "uint8": 1, "int8": 1, "int32": 4, "int64": 8}


def load_manifest(folder: Path) -> Manifest:
    """Read a bundle's manifest; BundleError names what is wrong with it. Its numbers are within their bounds, its files
    lie inside the folder, those it lists have the size it says."""
    path = folder / MANIFEST_FILE
    try:
        manifest = msgspec.json.decode(read_bytes(path, MANIFEST_BYTES), type=Manifest)
    except FileNotFoundError:
        raise BundleError(f"{folder} is not a bundle: it has no {MANIFEST_FILE}") from None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {shown(error)}") from error
    except RecursionError:
        raise BundleError(f"{path} cannot be read: it is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BundleError(f"{path} cannot be read: {one_line(error)}") from error
    if (version := manifest.format_version) != FORMAT_VERSION:
        raise BundleError(f"{path} has format {version}, this version reads {FORMAT_VERSION}: compile it again")
    _check_model(path, manifest)
    try:
        for name in (*manifest.files, *files_used(manifest)):
            confined(folder, name)
    except OSError as error:
        raise BundleError(f"manifest names a file outside the bundle: {shown(error)}") from error
    for name, entry in manifest.files.items():
        _check_file(folder, name, entry)
    return manifest


def _check_model(path: Path, manifest: Manifest) -> None:
    """What no bound of a single field can say."""
    _check_attention(path, manifest.model)
    if manifest.kv_dtype not in ITEM_BYTES:
        raise BundleError(f"{path}: kv_dtype must be one of {', '.join(ITEM_BYTES)}, it is {manifest.kv_dtype!r}")
    if manifest.kv_bytes_per_token > specs.MAX_CACHE_BYTES_PER_TOKEN:
        raise BundleError(
            f"{path}: layers, kv_heads and head_dim make {manifest.kv_bytes_per_token} bytes of cache a token, "
            f"{specs.MAX_CACHE_BYTES_PER_TOKEN} is the most"
        )
    recurrent = manifest.model.recurrent
    if recurrent is not None and (fault := recurrent.fault(manifest.model.layers)):
        raise BundleError(f"{path}: {fault}")
    vision = manifest.vision
    if vision is not None and (vision.native is None) != (vision.side > 0 and vision.tokens > 0):
        raise BundleError(f"{path}: vision needs side and tokens, or native")
    if vision is not None and vision.both_ways and vision.native is not None:
        raise BundleError(f"{path}: vision.both_ways needs tiles of one size, native is not")
    if manifest.diffusion is not None and manifest.diffusion.mask_token >= manifest.model.vocab:
        raise BundleError(
            f"{path}: diffusion.mask_token ({manifest.diffusion.mask_token}) is not among {manifest.model.vocab} tokens"
        )
    if manifest.sample is not None and (fault := manifest.sample.fault(manifest.model.vocab)):
        raise BundleError(f"{path}: {fault}")
    for graph in manifest.graphs:
        if graph.rows is not None and graph.context is not None and graph.context < graph.rows:
            raise BundleError(f"{path}: graph {graph.name} has a context of {graph.context} for {graph.rows} rows")


def _check_attention(path: Path, model: ModelSpec) -> None:
    for kind, rope in model.ropes.items():
        name = "model.rope" if kind is RotationKind.MODEL else "model.local_rope"
        turned = [each for each in model.attention if each.rotation is kind]
        most = min((model.heads_of(each).head_dim for each in turned), default=model.head_dim)
        if rope.rotary_dim > most or rope.rotary_dim % 2:
            raise BundleError(
                f"{path}: {name}.rotary_dim must be even and at most head_dim ({most}), it is {rope.rotary_dim}"
            )
        if len(rope.inverse_frequencies) != rope.rotary_dim // 2:
            raise BundleError(
                f"{path}: {name}.inverse_frequencies must hold {rope.rotary_dim // 2} numbers, half of rotary_dim, "
                f"it holds {len(rope.inverse_frequencies)}"
            )
        if rope.axes and len(rope.axes) != len(rope.inverse_frequencies):
            raise BundleError(f"{path}: {name}.axes must hold {rope.rotary_dim // 2} numbers, or none")
    if model.attention and len(model.attention) != model.layers:
        raise BundleError(f"{path}: model.attention has {len(model.attention)} layers, the model has {model.layers}")
    if model.local_rope is None and any(each.rotation is RotationKind.LOCAL for each in model.attention):
        raise BundleError(f"{path}: a layer turns by model.local_rope, which is missing")


def files_used(manifest: Manifest) -> tuple[str, ...]:
    """The files that serving opens by name; weights are named by the graph files."""
    text, binaries = manifest.text, manifest.npu.binaries if manifest.npu else ()
    prefix = manifest.forecast.file if manifest.forecast else ""
    heads = (manifest.encoder.score_head, manifest.encoder.projection) if manifest.encoder else ()
    tables = [table.file for table in (manifest.embedding, manifest.layer_embedding) if table is not None]
    vision = manifest.vision.file if manifest.vision else ""
    weights = (manifest.kv_scales, manifest.head_weight, manifest.conv_weights, manifest.head_basis)
    others = filter(None, (text.chat_template, *weights, prefix, *heads, vision, *tables))
    return (*(graph.file for graph in manifest.graphs), *binaries, text.tokenizer, *others)


def _check_file(folder: Path, name: str, entry: FileEntry) -> None:
    with reading(f"bundle file {name}"):
        if not is_regular(folder / name):
            raise BundleError(f"bundle file {name} is missing from {folder}, or is no regular file")
        size = (folder / name).stat().st_size
    if size != entry.bytes:
        raise BundleError(f"bundle file {name} has {size} bytes, its manifest says {entry.bytes}")


def save_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def describe_file(path: Path) -> FileEntry:
    """Size and sha256 of a regular file. OSError."""
    with open_regular(path) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileEntry(path.stat().st_size, digest)


def verify_hashes(folder: Path, manifest: Manifest) -> list[str]:
    """Names of the files whose sha256 is not the manifest's (slow: reads everything)."""
    return [name for name, entry in manifest.files.items() if describe_file(folder / name).sha256 != entry.sha256]
