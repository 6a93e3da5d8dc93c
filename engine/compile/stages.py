"""The stages that do not depend on the target: text, weights, float graphs, hashes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from engine.bundle.manifest import describe_file
from engine.bundle.specs import ModelTask
from engine.bundle.weight_files import EMBEDDING_FILE
from engine.compile.arguments import Quant, Split
from engine.compile.compilation import Compilation, Stage
from engine.compile.graphs.graph_builder import WrittenGraph
from engine.compile.graphs.pool import GraphPlan, build_graph, save_graph
from engine.compile.quantisation.packer import WeightPacker
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.task import SentenceFiles, judge_of, pooling_of
from engine.compile.sources.text_files import load_tokenizer
from engine.errors import CompileError, UnsupportedModel
from engine.models.network import Network

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
            with work.pipeline.weight_file(work.graph_folder, part.data_file) as file:
                work.packed.append(packer.pack(part, file, file))
            if work.keeps_graphs:
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
    left = [name for name in left if not name.startswith(ignored)]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise UnsupportedModel(f"the checkpoint has tensor {left[0]}{more}, which {network.spec.family} does not use")


def graphs_stage(write: Callable[[Compilation, GraphPlan], WrittenGraph]) -> Stage:
    """Write one ONNX file for each part and shape."""

    def written(work: Compilation) -> None:
        plans = work.plans()
        work.progress.stage("graphs", len(plans), "graphs")
        for plan in plans:
            work.graphs.append(save_graph(plan, write(work, plan), work.graph_folder))
            work.progress.advance(1)

    return written


def pool_graph(work: Compilation, plan: GraphPlan) -> WrittenGraph:
    """With float activations."""
    packed, pipeline = work.packed[plan.part.number - 1], work.pipeline
    return build_graph(plan, packed, work.network, pipeline.lowering, pipeline.dtype).written(plan.name)


def hash_stage(work: Compilation) -> None:
    """Describe the files that were not hashed while they were written."""
    names = sorted(path.name for path in work.folder.iterdir() if path.name not in work.files)
    work.progress.stage("hashes", len(names), "files")
    for name in names:
        work.files[name] = describe_file(work.folder / name)
        work.progress.advance(1)
