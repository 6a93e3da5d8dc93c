"""The record that the stages of a compilation read and fill in, the facts of one kind of bundle, and its manifest."""

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from engine.bundle.check import check_contract
from engine.bundle.fused import shape_for
from engine.bundle.loss_text import kv_text, parity_text
from engine.bundle.manifest import (
    FORMAT_VERSION,
    FileEntry,
    GraphSpec,
    Manifest,
    NpuSpec,
    TextSpec,
    describe_file,
    save_manifest,
)
from engine.bundle.specs import ModelTask, PoolingSpec, QualitySpec, RerankSpec, SampleSpec, TableSpec
from engine.bundle.tensors import Encoding
from engine.bundle.variant import StepShape
from engine.bundle.vision import VisionSpec
from engine.bundle.weight_files import CONV_WEIGHTS, EMBEDDING_FILE, HEAD_BASIS, KV_SCALES
from engine.compile.arguments import DEFAULT_SPLIT, CompileArguments, Layout, Quant, Split
from engine.compile.calibration.documents import calibration_documents, token_sequences
from engine.compile.graphs.graph_builder import WrittenGraph
from engine.compile.graphs.layers import lora_modules
from engine.compile.graphs.lowering import Lowering
from engine.compile.graphs.pool import GraphPlan, PartPlan, build_graph, plan_graphs, save_graph, window_past
from engine.compile.plan import fused_spec, kv_type, layout_of
from engine.compile.progress import ProgressSink
from engine.compile.quantisation.packed import PackedEncoder, PackedPart
from engine.compile.quantisation.packer import WeightPacker
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.source import Source
from engine.compile.sources.task import SentenceFiles, judge_of, pooling_of
from engine.compile.sources.text_files import load_tokenizer
from engine.errors import CompileError, UnsupportedModel
from engine.files import is_gguf
from engine.models.network import Network
from engine.processes import installed_version

Stage = Callable[["Compilation"], None]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How one kind of bundle is made.

    lowering: forms of the operators. dtype: of the activations and masks that graphs are written with. kv_dtype: of the
    bundle's KV cache. graph_folder: where weights and graphs are written, below the bundle; "" = in the bundle itself,
    any other is removed once binaries are made of them.
    """

    stages: tuple[Stage, ...]
    lowering: Lowering
    dtype: str
    kv_dtype: str
    graph_folder: str = ""


@dataclass(slots=True)
class Compilation:
    """What is known so far. A stage fills in its own fields and reads those of the stages before it.

    packed: by part; packed_encoder: instead, of an encoder. graphs: of the bundle; onnx_graphs: what its context
    binaries were made from. files: entries of the manifest. encodings: of activations, by their key in the bundle.
    quality: how 4-bit codes were chosen, None = rounded to nearest. wide: tensors that get 8 bits all the same.
    vision: None for a model that reads no images; image_graph: of one size.
    kv_dtype: of caches, the pipeline's unless a stage takes wider ones.
    codes: what becomes of weights that come quantised.
    is_rotated: whether the stream is. original, original_network: as the source has them, whatever stages make of it.
    """

    arguments: CompileArguments
    progress: ProgressSink
    pipeline: Pipeline
    source: Source
    checkpoint: Checkpoint
    network: Network
    shapes: tuple[StepShape, ...]
    parts: tuple[PartPlan, ...]
    folder: Path
    packed: list[PackedPart] = field(default_factory=list)
    packed_encoder: PackedEncoder | PackedPart | None = None
    graphs: list[GraphSpec] = field(default_factory=list)
    files: dict[str, FileEntry] = field(default_factory=dict)
    text: TextSpec | None = None
    parity: dict[str, float] = field(default_factory=dict)
    sample: SampleSpec | None = None
    npu: NpuSpec | None = None
    onnx_graphs: tuple[GraphSpec, ...] = ()
    encodings: dict[str, Encoding] = field(default_factory=dict)
    pooling: PoolingSpec | None = None
    rerank: RerankSpec | None = None
    quality: QualitySpec | None = None
    wide: frozenset[str] = frozenset()
    vision: VisionSpec | None = None
    image_graph: GraphSpec | None = None
    is_rotated: bool = False
    codes: str = ""
    kv_dtype: str = field(init=False)
    original: Checkpoint = field(init=False)
    original_network: Network = field(init=False)

    def __post_init__(self) -> None:
        self.original, self.original_network = self.checkpoint, self.network
        self.kv_dtype = self.pipeline.kv_dtype

    @property
    def graph_folder(self) -> Path:
        """Where weights and ONNX graphs are written; the bundle's folder unless binaries are made of them."""
        return self.folder / self.pipeline.graph_folder

    def plans(self) -> list[GraphPlan]:
        if layout_of(self.arguments) is Layout.FUSED:
            slots, (part,) = self.arguments.decode_slots, self.parts
            return [GraphPlan(shape_for(shape.rows, slots).name, part, shape) for shape in self.shapes]
        windows = window_past(self.network.spec, self.shapes)
        return [plan for part in self.parts for plan in plan_graphs(part, self.shapes, windows)]

    def calibration_texts(self, length: int, count: int) -> list[list[int]]:
        """At most `count` sequences of exactly `length` tokens of the text to measure on, or of the built-in one."""
        assert self.text is not None
        documents = calibration_documents(self.arguments.source, self.arguments.calibration, self.folder, self.text)
        return token_sequences(documents, self.folder, self.text, self.network.spec.vocab, length, count)


def finished(work: Compilation) -> Manifest:
    """Run all stages, then check and write the manifest. BundleError when it breaks the contract."""
    for stage in work.pipeline.stages:
        stage(work)
    manifest = describe(work)
    check_contract(manifest)
    save_manifest(work.folder, manifest)
    work.progress.note(summary(manifest))
    return manifest


# What a manifest has of a compilation as it is, and by the same name.
FACTS = ("parity", "sample", "npu", "pooling", "rerank", "quality", "codes", "vision", "image_graph")


def describe(work: Compilation) -> Manifest:
    """The manifest of what has been made so far."""
    arguments, network, layout = work.arguments, work.network, layout_of(work.arguments)
    assert work.text is not None
    return msgspec.structs.replace(
        manifest_of(arguments, network, work.text, work.graphs, work.files),
        **{name: getattr(work, name) for name in FACTS},
        split=(arguments.split or DEFAULT_SPLIT if layout is Layout.POOL else layout).value,
        kv_dtype=kv_type(arguments).value if layout is Layout.SEGMENTS else work.kv_dtype,
        fused=fused_spec(arguments) if layout is Layout.FUSED else None,
        kv_scales=KV_SCALES if KV_SCALES in work.files else "",
        lora=lora_modules(network) if arguments.lora else (),
        embedding=TableSpec(EMBEDDING_FILE, "float32", network.spec.hidden) if EMBEDDING_FILE in work.files else None,
        conv_weights=CONV_WEIGHTS if CONV_WEIGHTS in work.files else "",
        head_basis=HEAD_BASIS if HEAD_BASIS in work.files else "",
        diffusion=network.details.diffusion,
        encoder=network.encoder.spec if network.encoder else None,
    )


def manifest_of(
    arguments: CompileArguments,
    network: Network,
    text: TextSpec,
    graphs: Sequence[GraphSpec],
    files: Mapping[str, FileEntry],
) -> Manifest:
    """What manifests of all kinds of bundles tell alike."""
    return Manifest(
        format_version=FORMAT_VERSION,
        name=arguments.name or model_name(arguments.source),
        target=arguments.target.value,
        quant=arguments.quant.value,
        split="none",
        created=int(time.time()),
        model=network.spec,
        graphs=tuple(graphs),
        kv_dtype="float32",
        max_context=network.compiled_context,
        text=text,
        files=dict(files),
        versions=tool_versions("onnxruntime-qnn") if arguments.is_npu else tool_versions(),
        source=model_name(arguments.source),
        task=arguments.task or ModelTask.GENERATE,
    )


def model_name(source: Path) -> str:
    """A folder's name, or a GGUF file's without its suffix; a link to one has a better name than what it links to."""
    return source.stem if is_gguf(source) else source.resolve().name


def tool_versions(*more: str) -> dict[str, str]:
    """Versions of what made the bundle; hexserve is '0' when run from a tree that is not installed."""
    names = ("hexserve", "onnx", "onnxruntime", "numpy", *more)
    return {name: installed_version(name, "0") for name in names} | {"python": platform.python_version()}


def summary(manifest: Manifest) -> str:
    """One line for the end."""
    size = sum(entry.bytes for entry in manifest.files.values())
    where = manifest.npu.parity_on if manifest.npu else "CPU"
    made = f"{manifest.name}: {len(manifest.graphs)} graphs, {size / 1e6:.1f} MB; against float: "
    if not manifest.parity:
        return made + where
    figures = parity_text(manifest.parity)
    if kv := kv_text(manifest.parity):
        figures += f"; {manifest.kv_dtype} caches against float ones: {kv}"
    return f"{made}{figures} ({manifest.parity['tokens']:.0f} tokens, {where})"


DERIVED = ("rotary_emb.inv_freq", "masked_bias")  # old checkpoints save tables that follow from the config


def text_stage(work: Compilation) -> None:
    """Tokenizer and template first: they are quick, and often what is missing."""
    work.progress.stage("text", 1, "files")
    work.text = work.source.write_text(work.folder, work.network.spec.vocab)
    if work.arguments.task is ModelTask.EMBED:
        files = SentenceFiles.read(work.arguments.source)
        work.pooling = pooling_of(load_tokenizer(work.folder), files, work.network.spec.hidden)
    elif work.arguments.task is ModelTask.RERANK:
        work.rerank = judge_of(load_tokenizer(work.folder))
    work.progress.advance(1)


EMBEDDING_ROWS = 4096  # of the table at once


@contextmanager
def packing(work: Compilation) -> Iterator[WeightPacker]:
    """While weights are quantised and written. CompileError when a number leaves its type, UnsupportedModel when a
    tensor is left."""
    work.progress.stage(f"weights ({work.arguments.quant})", work.checkpoint.total_bytes(), "B")
    work.graph_folder.mkdir(exist_ok=True)
    with overflow_refused(work.arguments.quant):
        yield WeightPacker(work.checkpoint, work.network, work.arguments, work.progress.advance, work.wide)
    check_all_used(work.checkpoint, work.network, work.arguments.task is not ModelTask.EMBED)


def weights_stage(work: Compilation) -> None:
    """Quantise and write the weights of every part."""
    with packing(work) as packer:
        for part in work.parts:
            with WeightFile(work.graph_folder, part.data_file, work.pipeline.dtype) as file:
                work.packed.append(packer.pack(part, file, file))
            if not work.pipeline.graph_folder:
                work.files[part.data_file] = file.entry
        if work.arguments.split is Split.HOST_LMHEAD:
            write_embedding(work)


def write_embedding(work: Compilation) -> None:
    """Write the table that the host looks tokens up in, float32 as in GenieX bundles."""
    name, vocab = f"{work.network.details.names.embedding}.weight", work.network.spec.vocab
    factor = np.float32(work.network.details.multipliers.embedding)
    work.checkpoint.require(name, (vocab, work.network.spec.hidden))
    with (work.folder / EMBEDDING_FILE).open("wb") as file:
        for start in range(0, vocab, EMBEDDING_ROWS):
            rows = work.checkpoint.rows(name, start, min(start + EMBEDDING_ROWS, vocab))
            file.write((rows * factor).astype("<f4").tobytes())
    work.files[EMBEDDING_FILE] = describe_file(work.folder / EMBEDDING_FILE)


@contextmanager
def overflow_refused(quant: Quant) -> Iterator[None]:
    """CompileError when a number leaves its type while weights are stored."""
    try:
        with np.errstate(over="raise", invalid="raise"):
            yield
    except FloatingPointError:
        raise CompileError(f"the checkpoint has weights too large to be stored as {quant}") from None


def check_all_used(checkpoint: Checkpoint, network: Network, has_head: bool = True) -> None:
    """A tensor the graphs leave out (an adapter, a bias the config denies) would change the answers: refuse it."""
    needless = set() if has_head and not network.spec.tied_head else {f"{network.details.names.head}.weight"}
    ignored = network.details.ignored
    left = [name for name in checkpoint.unused() if name not in needless and not name.endswith(DERIVED)]
    left = [name for name in left if not name.startswith(ignored) and not _adds_nothing(checkpoint, name)]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise UnsupportedModel(f"the checkpoint has tensor {left[0]}{more}, which {network.spec.family} does not use")


def _adds_nothing(checkpoint: Checkpoint, name: str) -> bool:
    """GPTQ's first programs wrote a bias of zeros for every matrix."""
    try:
        return name.endswith(".bias") and not checkpoint.tensor(name, checkpoint.shape(name)).any()
    except CompileError:  # a projector's tensors have other names here
        return False


def graphs_stage(work: Compilation, write: Callable[[Compilation, GraphPlan], WrittenGraph]) -> None:
    """Write one ONNX file for each part and shape."""
    work.progress.stage("graphs", len(work.plans()), "graphs")
    for plan in work.plans():
        work.graphs.append(save_graph(plan, write(work, plan), work.graph_folder))
        work.progress.advance(1)


def pool_graph(work: Compilation, plan: GraphPlan) -> WrittenGraph:
    packed, pipeline = work.packed[plan.part.number - 1], work.pipeline
    return build_graph(plan, packed, work.network, pipeline.lowering, pipeline.dtype).written(plan.name)


def hash_stage(work: Compilation) -> None:
    """Describe the files that were not hashed while they were written."""
    names = sorted(path.name for path in work.folder.iterdir() if path.name not in work.files)
    work.progress.stage("hashes", len(names), "files")
    for name in names:
        work.files[name] = describe_file(work.folder / name)
        work.progress.advance(1)
