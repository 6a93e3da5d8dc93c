"""The record that the stages of a compilation read and fill in, and the facts of one kind of bundle."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.bundle.encoding import Encoding
from engine.bundle.manifest import FileEntry, GraphSpec, NpuSpec, TextSpec
from engine.bundle.pooling import PoolingSpec, RerankSpec
from engine.bundle.quality_spec import QualitySpec
from engine.bundle.variant import PassShape
from engine.compile.arguments import CompileArguments, Layout
from engine.compile.checkpoint import Checkpoint
from engine.compile.encoders.packed import PackedEncoder
from engine.compile.fused.plan import plan_fused
from engine.compile.graphs import GraphPlan, plan_graphs
from engine.compile.layout import layout_of
from engine.compile.lowering import Lowering
from engine.compile.packed import PackedPart
from engine.compile.parts import PartPlan
from engine.compile.progress import ProgressSink
from engine.compile.source import Source
from engine.compile.task import SentenceFiles
from engine.compile.weight_file import WeightFile
from engine.models.network import Network

Stage = Callable[["Compilation"], None]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How one kind of bundle is made.

    lowering: forms of the operators. dtype: of the activations and masks that graphs are written with. kv_dtype: of the
    bundle's KV cache. weight_file: what the graphs' external data is written as. graph_folder: where weights and graphs
    are written, below the bundle; "" = in the bundle itself, any other is removed once binaries are made of them.
    """

    stages: tuple[Stage, ...]
    lowering: Lowering
    dtype: str
    kv_dtype: str
    weight_file: type[WeightFile] = WeightFile
    graph_folder: str = ""


@dataclass(slots=True)
class Compilation:
    """What is known so far. A stage fills in its own fields and reads those of the stages before it.

    packed: by part; packed_encoder: instead, of an encoder. graphs: of the bundle; onnx_graphs: what its context
    binaries were made from. files: entries of the manifest. encodings: of activations, by their key in the bundle.
    sentence_files: what says how vectors are made. quality: how 4-bit codes were chosen, None = rounded to nearest.
    is_rotated: whether the stream is. original, original_network: as the source has them, whatever stages make of it.
    """

    arguments: CompileArguments
    progress: ProgressSink
    pipeline: Pipeline
    source: Source
    checkpoint: Checkpoint
    network: Network
    shapes: tuple[PassShape, ...]
    parts: tuple[PartPlan, ...]
    folder: Path
    packed: list[PackedPart] = field(default_factory=list)
    packed_encoder: PackedEncoder | None = None
    graphs: list[GraphSpec] = field(default_factory=list)
    files: dict[str, FileEntry] = field(default_factory=dict)
    text: TextSpec | None = None
    parity: dict[str, float] = field(default_factory=dict)
    npu: NpuSpec | None = None
    onnx_graphs: tuple[GraphSpec, ...] = ()
    encodings: dict[str, Encoding] = field(default_factory=dict)
    sentence_files: SentenceFiles = field(default_factory=SentenceFiles)
    pooling: PoolingSpec | None = None
    rerank: RerankSpec | None = None
    quality: QualitySpec | None = None
    is_rotated: bool = False
    original: Checkpoint = field(init=False)
    original_network: Network = field(init=False)

    def __post_init__(self) -> None:
        self.original, self.original_network = self.checkpoint, self.network

    @property
    def graph_folder(self) -> Path:
        """Where weights and ONNX graphs are written; the bundle's folder unless binaries are made of them."""
        return self.folder / self.pipeline.graph_folder

    @property
    def keeps_graphs(self) -> bool:
        """Whether weights and ONNX graphs are part of the bundle."""
        return not self.pipeline.graph_folder

    def plans(self) -> list[GraphPlan]:
        """Every graph of every part."""
        if layout_of(self.arguments) is Layout.FUSED:
            return plan_fused(self.parts[0], self.shapes, self.arguments.decode_slots)
        return [plan for part in self.parts for plan in plan_graphs(part, self.shapes)]
