"""The compiler of encoders: two ordered lists of stages, and the driver that runs one of them."""

from contextlib import ExitStack
from dataclasses import replace

from engine.bundle.check import check_contract
from engine.bundle.manifest import Manifest, save_manifest
from engine.compile.arguments import CompileArguments
from engine.compile.compilation import Compilation, Pipeline
from engine.compile.description import describe, summary
from engine.compile.encoders.checks import check_encoder_arguments, encoder_shapes, settled
from engine.compile.encoders.graphs import encoder_part
from engine.compile.encoders.stages import (
    encoder_graphs_stage,
    encoder_parity_stage,
    encoder_quality_stage,
    encoder_text_stage,
    encoder_weights_stage,
)
from engine.compile.encoders.task import longest_text, settle_encoder_task
from engine.compile.lowering import FUSED, NPU
from engine.compile.npu.half_weights import HalfWeightFile
from engine.compile.npu.stages import SOURCES, binaries_stage
from engine.compile.progress import ProgressSink
from engine.compile.source import FolderSource
from engine.compile.stages import hash_stage
from engine.compile.task import SentenceFiles
from engine.models.encoders.families import read_encoder
from engine.sources.publish import staged_folder

ENCODER_CPU = Pipeline(
    stages=(encoder_text_stage, encoder_weights_stage, encoder_graphs_stage, hash_stage, encoder_parity_stage),
    lowering=FUSED,
    dtype="float32",
    kv_dtype="float32",
)
ENCODER_NPU = Pipeline(
    stages=(
        encoder_text_stage,
        encoder_weights_stage,
        encoder_graphs_stage,
        binaries_stage,
        encoder_quality_stage,
        hash_stage,
    ),
    lowering=NPU,
    dtype="float16",
    kv_dtype="float16",
    weight_file=HalfWeightFile,
    graph_folder=SOURCES,
)


def compile_encoder(arguments: CompileArguments, progress: ProgressSink) -> Manifest:
    """Compile an encoder's Hugging Face folder into a bundle folder and return its manifest.

    Raises UnsupportedModel or CompileError; then nothing is left at the output.
    """
    check_encoder_arguments(arguments)
    arguments = settled(arguments)
    source = FolderSource(arguments.source)
    arguments = settle_encoder_task(arguments, source.config)
    longest = longest_text(arguments.source, arguments.max_context)
    with ExitStack() as stack:
        checkpoint = stack.enter_context(source.tensors())
        network = read_encoder(source.config, checkpoint.__contains__, longest)
        shapes = encoder_shapes(arguments, network.compiled_context)
        network = replace(network, compiled_context=min(network.compiled_context, shapes[-1].rows))
        folder = stack.enter_context(staged_folder(arguments.output, arguments.force))
        pipeline = ENCODER_NPU if arguments.is_npu else ENCODER_CPU
        parts = (encoder_part(network.spec.layers),)
        work = Compilation(arguments, progress, pipeline, source, checkpoint, network, shapes, parts, folder)
        work.sentence_files = SentenceFiles.read(arguments.source)
        for stage in pipeline.stages:
            stage(work)
        manifest = describe(work)
        check_contract(manifest)
        save_manifest(folder, manifest)
    progress.note(summary(manifest))
    return manifest
