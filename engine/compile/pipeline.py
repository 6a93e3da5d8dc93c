"""The compiler: the stages of each kind of bundle in their order, and the driver that runs one of them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from engine.bundle.manifest import GraphKind, Manifest
from engine.bundle.variant import StepShape
from engine.compile import compilation
from engine.compile.arguments import DEFAULT_SPLIT, CompileArguments, Layout
from engine.compile.check.parity import enough_tokens
from engine.compile.compilation import Compilation, Pipeline, Stage, graphs_stage, hash_stage, text_stage
from engine.compile.graphs.fused import fused_graph
from engine.compile.graphs.integer_graphs import calibration_stage, integer_graph
from engine.compile.graphs.lowering import FUSED, NPU
from engine.compile.graphs.pool import PartPlan, one_part, plan_parts
from engine.compile.graphs.recurrence import conv_weights_stage
from engine.compile.graphs.vision import vision_stage
from engine.compile.plan import (
    check_arguments,
    fixed_shapes,
    layout_of,
    longest_sequence,
    requested_context,
    resolve_graphs,
    whole_part,
)
from engine.compile.progress import ProgressSink
from engine.compile.quantisation.choose import quality
from engine.compile.quantisation.choose.matrices import codes_told
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import method_of, with_kept_floats
from engine.compile.quantisation.transforms.transformed import family_view
from engine.compile.sources.source import Source, is_model_file, open_source
from engine.compile.sources.speech.source import is_speech
from engine.compile.sources.task import SentenceFiles, check_task, names_in, resolve_task
from engine.compile.targets.cpu import (
    linear_graphs_stage,
    segment_losses_stage,
    segment_weights_stage,
)
from engine.compile.targets.encoder import compile_encoder
from engine.compile.targets.measure import baseline_warning, measure_logits, parity_stage, quality_stage
from engine.compile.targets.npu import SOURCES, binaries_stage, genie_stage, image_binary_stage, plan_binaries
from engine.compile.targets.speech import compile_speech
from engine.isolation.machine import has_amx, usable_memory
from engine.models.encoders import architecture_of, is_encoder_folder
from engine.models.family import read_network
from engine.models.network import Network
from engine.models.stored_codes import read_stored_codes
from engine.sources.publish import staged_folder

WEIGHTS = (quality.balance_stage, quality.choose_codes_stage, compilation.weights_stage, quality.drop_codes_stage)
FLOAT = (partial(graphs_stage, write=compilation.pool_graph),)
INTEGER = (calibration_stage, partial(graphs_stage, write=integer_graph))


def stages_of(is_npu: bool, graphs: Sequence[Stage], ending: Sequence[Stage] = (genie_stage,)) -> tuple[Stage, ...]:
    """In order; the text comes first: it is quick, and often what is missing. ending: what only an NPU's have."""
    made = (text_stage, vision_stage, *WEIGHTS, *graphs)
    if is_npu:
        measured = partial(quality_stage, measure=measure_logits)
        return (*made, binaries_stage, image_binary_stage, measured, *ending, hash_stage)
    return (*made, hash_stage, partial(parity_stage, measure=measure_logits))


CPU_FLOAT = Pipeline(stages_of(False, FLOAT), FUSED, "float32", "float32")
SEGMENTS = (
    *(text_stage, vision_stage, conv_weights_stage, quality.balance_stage, quality.choose_codes_stage),
    *(segment_weights_stage, quality.drop_codes_stage, linear_graphs_stage, segment_losses_stage, hash_stage),
)
CPU_SEGMENTS = replace(CPU_FLOAT, stages=SEGMENTS)
# Whether the target is an NPU, and what flows through the graphs.
PIPELINES = {
    (False, Activations.FLOAT32): CPU_FLOAT,
    (False, Activations.INTEGER): Pipeline(stages_of(False, INTEGER), NPU, "float32", "uint8"),
    (True, Activations.FLOAT16): Pipeline(stages_of(True, FLOAT), NPU, "float16", "float16", SOURCES),
    (True, Activations.INTEGER): Pipeline(stages_of(True, INTEGER), NPU, "float32", "uint8", SOURCES),
}


def resolve(
    arguments: CompileArguments, progress: ProgressSink, opened: Source | None = None
) -> tuple[CompileArguments, Source, Network]:
    """Check the options and resolve each that was left open, once and in the order in which they need each other. Open
    is only the type of int8 caches, which is measured. Raises UnsupportedModel, or CompileError naming the option.
    opened: the source with its encoder, where it was read before."""
    check_arguments(arguments)
    arguments = replace(arguments, amx=has_amx() if arguments.amx is None else arguments.amx)
    shapes = fixed_shapes(arguments)
    source = opened if opened is not None and has_images(arguments) else open_for(arguments)
    if source.remark:
        progress.note(source.remark)
    arguments = with_kept_floats(arguments, source.float_bytes(), usable_memory())
    network = _network(source, arguments, shapes)
    arguments = resolve_graphs(arguments, network)
    arguments = resolve_task(arguments, source.config, SentenceFiles.read(arguments.source))
    check_task(arguments, source.config, network)
    arguments = quality.resolve_quality(arguments, source, network, progress)
    tokens = arguments.parity_tokens or enough_tokens(network.spec.parameters)
    return replace(arguments, parity_tokens=tokens), source, network


def compile_bundle(arguments: CompileArguments, progress: ProgressSink) -> Manifest:
    """Compile a Hugging Face folder or a GGUF file into a bundle folder and return its manifest. Raises
    UnsupportedModel or CompileError; then nothing is left at the output."""
    if is_speech(arguments.source):
        return compile_speech(arguments, progress)
    read: Source | None = None
    if is_encoder_folder(arguments.source) or is_model_file(arguments.source):
        read = open_source(arguments.source)
        if architecture_of(read.config) is not None:
            return compile_encoder(arguments, read, progress)
    arguments, source, network = resolve(arguments, progress, read)
    pipeline, shapes, parts = pipeline_of(arguments), fixed_shapes(arguments), plan_parts_for(arguments, network)
    with source.tensors() as opened, staged_folder(arguments.output, arguments.force) as folder:
        network = names_in(opened, network)
        checkpoint = family_view(opened, network)
        work = Compilation(arguments, progress, pipeline, source, checkpoint, network, shapes, parts, folder)
        if (stored := read_stored_codes(source.config)) is not None:
            work.codes = codes_told(stored.format, checkpoint, network, arguments)
            progress.note(work.codes)
        manifest = compilation.finished(work)
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
        calibration = [calibration_stage] if activations is Activations.INTEGER else []
        stages = stages_of(arguments.is_npu, [*calibration, partial(graphs_stage, write=fused_graph)], ending=())
        return replace(pipeline, stages=stages)
    return pipeline


def plan_parts_for(arguments: CompileArguments, network: Network) -> tuple[PartPlan, ...]:
    """How the network is cut: for an NPU by size as well, because a context binary has a limit."""
    if layout_of(arguments) is Layout.FUSED:
        return (whole_part(network),)
    if arguments.is_npu:
        return plan_binaries(arguments, network, usable_memory())
    if layout_of(arguments) is Layout.SEGMENTS:
        return (one_part(GraphKind.LINEAR, network.spec.layers),)  # its graphs are cut at every layer
    return plan_parts(arguments.split or DEFAULT_SPLIT, [range(network.spec.layers)])


def _network(source: Source, arguments: CompileArguments, shapes: tuple[StepShape, ...]) -> Network:
    """For as many tokens as the options allow. A pool that holds what every layer sees bounds no sequence."""
    if shapes and layout_of(arguments) is Layout.POOL and not arguments.whole_context:
        network = read_network(source.config, arguments.max_context)
        if 0 < network.spec.sight < longest_sequence(shapes):
            return network
    return read_network(source.config, requested_context(arguments, shapes))


def open_for(arguments: CompileArguments) -> Source:
    """The source with its encoder where graphs can have one."""
    return open_source(arguments.source, with_images=has_images(arguments))


def has_images(arguments: CompileArguments) -> bool:
    """Whether graphs can have an encoder of images."""
    layout = layout_of(arguments)
    return layout is Layout.SEGMENTS or (arguments.is_npu and layout is Layout.POOL)
