"""The compiler as one ordered list of stages over one record of progress."""

import importlib.metadata
import platform
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Encoding
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
from engine.bundle.variant import PassShape
from engine.compile.arguments import INTEGER_GRAPHS, CompileArguments, Quant, check_arguments, fixed_shapes
from engine.compile.checkpoint import Checkpoint, read_json
from engine.compile.graphs import plan_graphs, write_graph
from engine.compile.lowering import LOWERINGS
from engine.compile.packed import PackedPart
from engine.compile.parity import Parity, bundle_logits, compare_logits
from engine.compile.parity_text import parity_texts
from engine.compile.parts import PartPlan, plan_parts
from engine.compile.progress import ProgressSink
from engine.compile.reference import reference_logits
from engine.compile.text_files import write_text_files
from engine.compile.weight_file import WeightFile
from engine.compile.weights import WeightPacker
from engine.errors import CompileError, UnsupportedModel
from engine.models.family import read_network
from engine.models.network import Network
from engine.sources.publish import staged_folder

ACTIVATION_DTYPE = "float32"
FP32_ERROR_LIMIT = 1e-3
DERIVED = ("rotary_emb.inv_freq", "masked_bias")  # old checkpoints save tables that follow from the config


@dataclass(slots=True)
class Compilation:
    """What is known so far. A stage fills in its own fields and reads those of the stages before it."""

    arguments: CompileArguments
    progress: ProgressSink
    checkpoint: Checkpoint
    config: dict[str, object]
    network: Network
    shapes: tuple[PassShape, ...]
    parts: tuple[PartPlan, ...]
    folder: Path
    packed: list[PackedPart] = field(default_factory=list)
    graphs: list[GraphSpec] = field(default_factory=list)
    files: dict[str, FileEntry] = field(default_factory=dict)
    text: TextSpec | None = None
    parity: dict[str, float] = field(default_factory=dict)
    npu: NpuSpec | None = None
    sources: tuple[GraphSpec, ...] = ()
    encodings: dict[str, Encoding] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of the compiler; `run` tells its own progress."""

    title: str
    run: Callable[[Compilation], None]


def compile_bundle(arguments: CompileArguments, progress: ProgressSink) -> Manifest:
    """Compile a Hugging Face folder into a bundle folder and return its manifest.

    Raises UnsupportedModel or CompileError; then nothing is left at the output.
    """
    check_arguments(arguments)
    shapes = fixed_shapes(arguments)
    config = read_json(arguments.source / "config.json")
    network = read_network(config, requested_context(arguments, shapes))
    with ExitStack() as stack:
        checkpoint = stack.enter_context(Checkpoint(arguments.source))
        folder = stack.enter_context(staged_folder(arguments.output, arguments.force))
        parts, stages = plan_work(arguments, network)
        work = Compilation(arguments, progress, checkpoint, config, network, shapes, parts, folder)
        for stage in stages:
            stage.run(work)
        manifest = describe(work)
        save_manifest(folder, manifest)
    progress.note(summary(manifest))
    return manifest


def plan_work(arguments: CompileArguments, network: Network) -> tuple[tuple[PartPlan, ...], tuple[Stage, ...]]:
    """How the network is cut, and the stages that compile it. The NPU's are loaded only when they are needed."""
    if not arguments.is_npu:
        return plan_parts(arguments.split, network.spec.layers), cpu_stages(arguments)
    from engine.compile.npu.split import plan_binaries  # noqa: PLC0415
    from engine.compile.npu.stages import NPU_STAGES  # noqa: PLC0415
    from engine.compile.qdq.npu_stages import INTEGER_NPU_STAGES  # noqa: PLC0415

    stages = INTEGER_NPU_STAGES if arguments.quant in INTEGER_GRAPHS else NPU_STAGES
    return plan_binaries(arguments, network), stages


def cpu_stages(arguments: CompileArguments) -> tuple[Stage, ...]:
    """The stages for the CPU; integer graphs have a calibration among them."""
    if arguments.quant not in INTEGER_GRAPHS:
        return STAGES
    from engine.compile.qdq.stages import CPU_STAGES  # noqa: PLC0415

    return CPU_STAGES


def requested_context(arguments: CompileArguments, shapes: tuple[PassShape, ...]) -> int:
    """Most tokens of one sequence that the options allow, 0 = no bound of theirs.

    A fixed bundle holds P columns and the last token needs none, hence the widest past plus one.
    """
    bounds = [arguments.max_context] if arguments.max_context else []
    if shapes:
        bounds.append(max(shape.past for shape in shapes) + 1)
    return min(bounds, default=0)


def text_stage(work: Compilation) -> None:
    """Tokenizer and template first: they are quick, and often what is missing."""
    work.progress.stage("text", 1, "files")
    work.text = write_text_files(work.arguments.source, work.folder, work.config, work.network.spec.vocab)
    work.progress.advance(1)


def weights_stage(work: Compilation) -> None:
    """Quantise and write the weights of every part."""
    work.files.update(pack_weights(work, work.folder))


def pack_weights(work: Compilation, folder: Path) -> dict[str, FileEntry]:
    """Write the weights of every part into a folder; the files made."""
    made = {}
    work.progress.stage(f"weights ({work.arguments.quant})", work.checkpoint.total_bytes(), "B")
    packer = WeightPacker(work.checkpoint, work.network, work.arguments, work.progress.advance)
    for part in work.parts:
        with WeightFile(folder, part.data_file) as file:
            work.packed.append(packer.pack(part, file))
        made[part.data_file] = file.entry
    check_all_used(work.checkpoint, work.network)
    return made


def check_all_used(checkpoint: Checkpoint, network: Network) -> None:
    """A tensor the graphs leave out (an adapter, a bias the config denies) would change the answers: refuse it."""
    needless = {f"{network.details.names.head}.weight"} if network.spec.tied_head else set()
    left = [name for name in checkpoint.unused() if name not in needless and not name.endswith(DERIVED)]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise UnsupportedModel(f"the checkpoint has tensor {left[0]}{more}, which {network.spec.family} does not use")


def graphs_stage(work: Compilation) -> None:
    """Write one ONNX file for each part and shape."""
    plans = [(part, plan) for part in work.parts for plan in plan_graphs(part, work.shapes)]
    work.progress.stage("graphs", len(plans), "graphs")
    lowering = LOWERINGS[work.arguments.target]
    for part, plan in plans:
        packed = work.packed[part.number - 1]
        work.graphs.append(write_graph(plan, packed, work.network, lowering, ACTIVATION_DTYPE, work.folder))
        work.progress.advance(1)


def hash_stage(work: Compilation) -> None:
    """Describe the files that were not hashed while they were written."""
    names = sorted(path.name for path in work.folder.iterdir() if path.name not in work.files)
    work.progress.stage("hashes", len(names), "files")
    for name in names:
        work.files[name] = describe_file(work.folder / name)
        work.progress.advance(1)


def parity_stage(work: Compilation) -> None:
    """Run the bundle against the float reference; a float bundle that differs is a bug, so it fails."""
    draft = describe(work)
    texts = held_out_texts(work, work.arguments.parity_tokens)
    count = sum(map(len, texts))
    work.progress.stage("parity", 2 * count, "tokens")
    expected = float_logits(work, texts)
    parity = compare_logits(expected, bundle_logits(work.folder, draft, texts))
    work.progress.advance(count)
    if is_float_bundle(work.arguments) and parity.relative_error > FP32_ERROR_LIMIT:
        raise CompileError(
            f"the compiled graphs differ from the checkpoint by {parity.relative_error:.2e} of the largest logit; "
            f"{FP32_ERROR_LIMIT} is the most an fp32 bundle may"
        )
    work.parity = parity_figures(parity)


def held_out_texts(work: Compilation, count: int) -> list[list[int]]:
    """About `count` tokens in sequences the bundle can hold."""
    longest = work.network.compiled_context
    if work.shapes:
        longest = min(longest, max(work.shapes).past + 1)
    return parity_texts(work.arguments.source, work.folder, work.network.spec.vocab, count, longest)


def float_logits(work: Compilation, texts: list[list[int]]) -> NDArray[np.float32]:
    """What the checkpoint itself says to texts: [all tokens, vocab]."""
    pieces = []
    for tokens in texts:
        pieces.append(reference_logits(work.checkpoint, work.network, np.array(tokens)))
        work.progress.advance(len(tokens))
    return np.concatenate(pieces)


def parity_figures(parity: Parity) -> dict[str, float]:
    """A comparison as the manifest keeps it."""
    return {
        "tokens": float(parity.tokens),
        "top1": round(parity.top1, 6),
        "kl": round(parity.kl, 9),
        "relative_error": float(f"{parity.relative_error:.3e}"),
    }


STAGES = (
    Stage("text", text_stage),
    Stage("weights", weights_stage),
    Stage("graphs", graphs_stage),
    Stage("hashes", hash_stage),
    Stage("parity", parity_stage),
)


def is_float_bundle(arguments: CompileArguments) -> bool:
    """True when nothing was rounded below float32."""
    head = arguments.head or arguments.quant
    return arguments.quant is Quant.FP32 and head is Quant.FP32 and arguments.table_bits == 32


def describe(work: Compilation) -> Manifest:
    """The manifest of what has been made so far."""
    arguments = work.arguments
    assert work.text is not None
    return Manifest(
        format_version=FORMAT_VERSION,
        name=arguments.name or arguments.source.resolve().name,
        target=arguments.target.value,
        quant=arguments.quant.value,
        split=arguments.split.value,
        created=int(time.time()),
        model=work.network.spec,
        graphs=tuple(work.graphs),
        kv_dtype=kv_dtype(arguments),
        max_context=work.network.compiled_context,
        text=work.text,
        files=work.files,
        versions=tool_versions() | ({"onnxruntime-qnn": _version("onnxruntime-qnn")} if arguments.is_npu else {}),
        parity=work.parity,
        source=arguments.source.resolve().name,
        npu=work.npu,
    )


def kv_dtype(arguments: CompileArguments) -> str:
    """What the caches hold."""
    if arguments.quant in INTEGER_GRAPHS:
        return "uint8"
    return "float16" if arguments.is_npu else ACTIVATION_DTYPE


def tool_versions() -> dict[str, str]:
    """Versions of what made the bundle; hexserve is '0' when run from a tree that is not installed."""
    names = ("hexserve", "onnx", "onnxruntime", "numpy")
    return {name: _version(name) for name in names} | {"python": platform.python_version()}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "0"


def summary(manifest: Manifest) -> str:
    """One line for the end."""
    size = sum(entry.bytes for entry in manifest.files.values())
    figures, where = manifest.parity, manifest.npu.parity_on if manifest.npu else "CPU"
    made = f"{manifest.name}: {len(manifest.graphs)} graphs, {size / 1e6:.1f} MB; against float: "
    if not figures:
        return made + where
    return made + (
        f"top-1 {100 * figures['top1']:.1f} %, KL {figures['kl']:.2e}, error {figures['relative_error']:.1e} "
        f"({figures['tokens']:.0f} tokens, {where})"
    )
