"""The stages that only encoders have: weights, graphs, the check."""

import shutil
from pathlib import Path

import msgspec

from engine.bundle.pooling import PoolingKind
from engine.bundle.task import ModelTask
from engine.compile.compilation import Compilation
from engine.compile.description import describe
from engine.compile.encoders.graphs import write_encoder_graph
from engine.compile.encoders.parity import bundle_vectors, compare_vectors, parity_passages, reference_vectors
from engine.compile.encoders.task import encoder_pooling, pair_of
from engine.compile.encoders.weights import EncoderPacker, write_score_head
from engine.compile.npu.quality import NOT_MEASURED, ON_CPU, choose_way
from engine.compile.npu.targets import NPU_TARGETS
from engine.compile.quantization.table import is_exact
from engine.compile.stages import check_all_used, overflow_refused
from engine.compile.text_files import load_tokenizer
from engine.compile.weights import WeightPacker
from engine.errors import CompileError
from engine.graphs.onnx_qnn import device_name, is_device, open_session, run_options
from engine.graphs.onnx_sessions import Provider, cpu_provider

LEAST_COSINE = 0.9999  # of an fp32 bundle
PARITY_TOKENS = 48  # unless --parity-tokens says otherwise


def encoder_text_stage(work: Compilation) -> None:
    """The tokenizer, and how vectors are made or pairs are written."""
    encoder, network = work.network.encoder, work.network
    assert encoder is not None
    work.progress.stage("text", 1, "files")
    text = work.source.write_text(work.folder, network.spec.vocab)
    work.text = msgspec.structs.replace(text, stop_ids=())  # nothing is generated that could end
    tokenizer = load_tokenizer(work.folder)
    if work.arguments.task is ModelTask.EMBED:
        work.pooling = encoder_pooling(tokenizer, work.sentence_files, encoder, network.spec.hidden)
    else:
        work.rerank = pair_of(tokenizer, encoder.spec.token_types)
    work.progress.advance(1)


def encoder_weights_stage(work: Compilation) -> None:
    """Quantise and write the weights, and the score head where there is one."""
    encoder = work.network.encoder
    assert encoder is not None
    work.progress.stage(f"weights ({work.arguments.quant})", work.checkpoint.total_bytes(), "B")
    work.graph_folder.mkdir(exist_ok=True)
    packer = WeightPacker(work.checkpoint, work.network, work.arguments, work.progress.advance)
    part = work.parts[0]
    with (
        overflow_refused(work.arguments.quant),
        work.pipeline.weight_file(work.graph_folder, part.data_file) as file,
    ):
        work.packed_encoder = EncoderPacker(work.network, packer, work.checkpoint).pack(encoder, file)
    if work.keeps_graphs:
        work.files[part.data_file] = file.entry
    if encoder.spec.score_head:
        write_score_head(work.checkpoint, work.network, work.folder / encoder.spec.score_head)
    check_all_used(work.checkpoint, work.network)


def encoder_graphs_stage(work: Compilation) -> None:
    """Write one ONNX file for each number of rows."""
    plans, pipeline, packed = work.plans(), work.pipeline, work.packed_encoder
    assert packed is not None
    work.progress.stage("graphs", len(plans), "graphs")
    for plan in plans:
        spec = write_encoder_graph(plan, packed, work.network, pipeline.lowering, pipeline.dtype, work.graph_folder)
        work.graphs.append(spec)
        work.progress.advance(1)


def encoder_parity_stage(work: Compilation) -> None:
    """Run the bundle against the float reference; a float bundle that differs is a bug, so it fails."""
    _measure(work, work.folder, cpu_provider(0), max(shape.rows for shape in work.shapes))
    if is_exact(work.arguments) and work.parity["cosine"] < LEAST_COSINE:
        raise CompileError(
            f"the compiled graphs differ from the checkpoint: the cosine of a vector is {work.parity['cosine']}, "
            f"{LEAST_COSINE} is the least that an fp32 bundle may have"
        )


def encoder_quality_stage(work: Compilation) -> None:
    """The same of context binaries, where this machine can tell; then the intermediate files are dropped."""
    assert work.npu is not None
    way = choose_way(work.network.spec.parameters, bool(work.npu.shared), is_device())
    work.npu = msgspec.structs.replace(work.npu, parity_on=way)
    if way == ON_CPU:
        binaries, work.graphs[:] = list(work.graphs), work.onnx_graphs
        _measure(work, work.graph_folder, cpu_provider(0), max(shape.rows for shape in work.shapes))
        work.graphs[:] = binaries
    elif way != NOT_MEASURED:
        options = run_options(NPU_TARGETS[work.arguments.target], extra="")
        provider = Provider(device_name(), lambda path: open_session(path, options, {}))
        _measure(work, work.folder, provider, min(shape.rows for shape in work.shapes))
    shutil.rmtree(work.graph_folder)


def _measure(work: Compilation, folder: Path, provider: Provider, rows: int) -> None:
    """Fill in `parity` from one pass of at most so many rows."""
    texts = parity_passages(work.folder, work.network, work.arguments.parity_tokens or PARITY_TOKENS, rows)
    count = sum(map(len, texts))
    work.progress.stage("parity", count, "tokens")
    kind = work.pooling.kind if work.pooling is not None else PoolingKind.CLS
    expected = reference_vectors(work.checkpoint, work.network, texts, kind)
    found = bundle_vectors(folder, describe(work), texts, kind, provider)
    work.progress.advance(count)
    work.parity = {"tokens": float(count), "texts": float(len(texts))} | compare_vectors(expected, found)
