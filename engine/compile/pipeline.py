"""The compiler: five ordered lists of stages, one for each kind of bundle, and the driver that runs one of them."""

from contextlib import ExitStack
from dataclasses import replace

from engine.bundle.manifest import Manifest, save_manifest
from engine.bundle.variant import PassShape
from engine.compile.arguments import DEFAULT_SPLIT, CompileArguments, Layout
from engine.compile.baseline import baseline_warning
from engine.compile.calibrated.balance import balance_stage
from engine.compile.calibrated.settle import settle_quality
from engine.compile.calibrated.stages import choose_codes_stage, drop_codes_stage
from engine.compile.checks import check_arguments, fixed_shapes, longest_sequence
from engine.compile.compilation import Compilation, Pipeline
from engine.compile.description import describe, summary
from engine.compile.encoders.pipeline import compile_encoder
from engine.compile.fused.plan import compiled_context, whole_part
from engine.compile.fused.stages import fused_stages
from engine.compile.hybrid import settle_hybrid
from engine.compile.layout import layout_of, settle_layout
from engine.compile.lowering import FUSED, NPU
from engine.compile.npu.half_weights import HalfWeightFile
from engine.compile.npu.split import plan_binaries
from engine.compile.npu.stages import SOURCES, binaries_stage, genie_stage, quality_stage
from engine.compile.parity_text import enough_tokens
from engine.compile.parts import PartPlan, plan_parts
from engine.compile.progress import ProgressSink
from engine.compile.qdq.stages import calibration_stage, integer_graphs_stage
from engine.compile.quantization.method import Activations
from engine.compile.quantization.table import method_of, with_kept_floats
from engine.compile.segments.losses import segment_losses_stage
from engine.compile.segments.recurrent import conv_weights_stage
from engine.compile.segments.stages import (
    attention_graphs_stage,
    linear_graphs_stage,
    segment_weights_stage,
    whole_network,
)
from engine.compile.source import open_source
from engine.compile.stages import graphs_stage, hash_stage, parity_stage, text_stage, weights_stage
from engine.compile.task import SentenceFiles, check_task, names_in, settle_task
from engine.isolation.memory import usable_memory
from engine.models.encoders.recognition import is_encoder_folder
from engine.models.family import read_network
from engine.models.network import Network
from engine.sources.publish import staged_folder

WEIGHTS = (balance_stage, choose_codes_stage, weights_stage, drop_codes_stage)
# The text comes first: it is quick, and often what is missing.
CPU_FLOAT = Pipeline(
    stages=(text_stage, *WEIGHTS, graphs_stage, hash_stage, parity_stage),
    lowering=FUSED,
    dtype="float32",
    kv_dtype="float32",
)
CPU_SEGMENTS = Pipeline(
    stages=(
        text_stage,
        conv_weights_stage,
        balance_stage,
        choose_codes_stage,
        segment_weights_stage,
        drop_codes_stage,
        linear_graphs_stage,
        segment_losses_stage,
        attention_graphs_stage,
        hash_stage,
    ),
    lowering=FUSED,
    dtype="float32",
    kv_dtype="float32",
)
CPU_INTEGER = Pipeline(
    stages=(
        text_stage,
        *WEIGHTS,
        calibration_stage,
        integer_graphs_stage,
        hash_stage,
        parity_stage,
    ),
    lowering=NPU,
    dtype="float32",
    kv_dtype="uint8",
)
NPU_HALF = Pipeline(
    stages=(
        text_stage,
        *WEIGHTS,
        graphs_stage,
        binaries_stage,
        quality_stage,
        genie_stage,
        hash_stage,
    ),
    lowering=NPU,
    dtype="float16",
    kv_dtype="float16",
    weight_file=HalfWeightFile,
    graph_folder=SOURCES,
)
NPU_INTEGER = Pipeline(
    stages=(
        text_stage,
        *WEIGHTS,
        calibration_stage,
        integer_graphs_stage,
        binaries_stage,
        quality_stage,
        genie_stage,
        hash_stage,
    ),
    lowering=NPU,
    dtype="float32",
    kv_dtype="uint8",
    graph_folder=SOURCES,
)
# Whether the target is an NPU, and what flows through the graphs.
PIPELINES = {
    (False, Activations.FLOAT32): CPU_FLOAT,
    (False, Activations.INTEGER): CPU_INTEGER,
    (True, Activations.FLOAT16): NPU_HALF,
    (True, Activations.INTEGER): NPU_INTEGER,
}


def compile_bundle(arguments: CompileArguments, progress: ProgressSink) -> Manifest:
    """Compile a Hugging Face folder or a GGUF file into a bundle folder and return its manifest.

    Raises UnsupportedModel or CompileError; then nothing is left at the output.
    """
    if is_encoder_folder(arguments.source):
        return compile_encoder(arguments, progress)
    check_arguments(arguments)
    shapes = fixed_shapes(arguments)
    source = open_source(arguments.source)
    arguments = with_kept_floats(arguments, source.float_bytes(), usable_memory())
    network = read_network(source.config, requested_context(arguments, shapes))
    arguments = settle_hybrid(settle_layout(arguments, network.spec.head_dim), network)
    files = SentenceFiles.read(arguments.source)
    arguments = settle_task(arguments, source.config, files)
    check_task(arguments, source.config, network)
    arguments = settle_quality(arguments, source, network, progress)
    arguments = replace(arguments, parity_tokens=arguments.parity_tokens or enough_tokens(network.spec.parameters))
    with ExitStack() as stack:
        checkpoint = stack.enter_context(source.tensors())
        folder = stack.enter_context(staged_folder(arguments.output, arguments.force))
        pipeline = pipeline_of(arguments)
        parts, network = plan_parts_for(arguments, network), names_in(checkpoint, network)
        work = Compilation(arguments, progress, pipeline, source, checkpoint, network, shapes, parts, folder)
        work.sentence_files = files
        for stage in pipeline.stages:
            stage(work)
        manifest = describe(work)
        save_manifest(folder, manifest)
    progress.note(summary(manifest))
    if warning := baseline_warning(manifest.parity, manifest.quality):
        progress.note(warning)
    return manifest


def pipeline_of(arguments: CompileArguments) -> Pipeline:
    """How the bundle asked for is made."""
    if layout_of(arguments) is Layout.SEGMENTS:
        return CPU_SEGMENTS
    activations = method_of(arguments).activations
    pipeline = PIPELINES[arguments.is_npu, activations]
    if layout_of(arguments) is Layout.FUSED:
        return replace(pipeline, stages=fused_stages(arguments.is_npu, activations))
    return pipeline


def plan_parts_for(arguments: CompileArguments, network: Network) -> tuple[PartPlan, ...]:
    """How the network is cut: for an NPU by size as well, because a context binary has a limit."""
    if layout_of(arguments) is Layout.FUSED:
        return (whole_part(network),)
    if arguments.is_npu:
        return plan_binaries(arguments, network, usable_memory())
    if layout_of(arguments) is Layout.SEGMENTS:
        return (whole_network(network.spec.layers),)
    return plan_parts(arguments.split or DEFAULT_SPLIT, network.spec.layers)


def requested_context(arguments: CompileArguments, shapes: tuple[PassShape, ...]) -> int:
    """Most tokens of one sequence that the options allow, 0 = no bound of theirs.

    A fixed bundle holds P columns and the last token needs none, hence the widest past plus one; one without a past
    has N rows for as many tokens.
    """
    bounds = [arguments.max_context] if arguments.max_context else []
    if layout_of(arguments) is Layout.FUSED:
        bounds.append(compiled_context(arguments))
    elif shapes:
        bounds.append(longest_sequence(shapes))
    return min(bounds, default=0)
