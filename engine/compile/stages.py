"""The stages that do not depend on the target: text, weights, float graphs, hashes, parity."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import describe_file
from engine.bundle.specs import ModelTask
from engine.bundle.weight_files import EMBEDDING_FILE
from engine.compile.arguments import CompileArguments, Quant, Split
from engine.compile.calibration.forward import reference_hidden, reference_logits
from engine.compile.check.baseline import baseline_figures
from engine.compile.check.parity import Parity, bundle_logits, compare_logits
from engine.compile.check.parity_text import parity_texts
from engine.compile.compilation import Compilation, describe
from engine.compile.graphs.pool import write_graph
from engine.compile.plan import longest_sequence
from engine.compile.quantisation.methods.table import is_exact
from engine.compile.quantisation.packer import WeightPacker
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.task import judge_of, pooling_of
from engine.compile.sources.text_files import load_tokenizer
from engine.errors import CompileError, UnsupportedModel
from engine.models.network import Network

FP32_ERROR_LIMIT = 1e-3
DERIVED = ("rotary_emb.inv_freq", "masked_bias")  # old checkpoints save tables that follow from the config


def text_stage(work: Compilation) -> None:
    """Tokenizer and template first: they are quick, and often what is missing."""
    work.progress.stage("text", 1, "files")
    work.text = work.source.write_text(work.folder, work.network.spec.vocab)
    if work.arguments.task is ModelTask.EMBED:
        work.pooling = pooling_of(load_tokenizer(work.folder), work.sentence_files, work.network.spec.hidden)
    elif work.arguments.task is ModelTask.RERANK:
        work.rerank = judge_of(load_tokenizer(work.folder))
    work.progress.advance(1)


EMBEDDING_ROWS = 4096  # of the table at once


def weights_stage(work: Compilation) -> None:
    """Quantise and write the weights of every part."""
    work.progress.stage(f"weights ({work.arguments.quant})", work.checkpoint.total_bytes(), "B")
    work.graph_folder.mkdir(exist_ok=True)
    packer = WeightPacker(work.checkpoint, work.network, work.arguments, work.progress.advance, work.wide)
    with overflow_refused(work.arguments.quant):
        for part in work.parts:
            with work.pipeline.weight_file(work.graph_folder, part.data_file) as file:
                work.packed.append(packer.pack(part, file, file))
            if work.keeps_graphs:
                work.files[part.data_file] = file.entry
    if work.arguments.split is Split.HOST_LMHEAD:
        write_embedding(work)
    check_all_used(work.checkpoint, work.network, work.arguments.task is not ModelTask.EMBED)


def write_embedding(work: Compilation) -> None:
    """Write the table that the host looks tokens up in, float32 as in GenieX bundles."""
    name, vocab = f"{work.network.details.names.embedding}.weight", work.network.spec.vocab
    factor = np.float32(work.network.details.multipliers.embedding)
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


def graphs_stage(work: Compilation) -> None:
    """Write one ONNX file with float activations for each part and shape."""
    plans, pipeline = work.plans(), work.pipeline
    work.progress.stage("graphs", len(plans), "graphs")
    for plan in plans:
        packed = work.packed[plan.part.number - 1]
        spec = write_graph(plan, packed, work.network, pipeline.lowering, pipeline.dtype, work.graph_folder)
        work.graphs.append(spec)
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
    check_exact(work.arguments, parity)
    work.parity = parity_figures(work, parity)
    work.parity |= baseline_figures(work, texts, expected)


def check_exact(arguments: CompileArguments, parity: Parity) -> None:
    """CompileError when nothing was rounded and the logits differ all the same."""
    if is_exact(arguments) and parity.relative_error > FP32_ERROR_LIMIT:
        raise CompileError(
            f"the compiled graphs differ from the checkpoint by {parity.relative_error:.2e} of the largest logit; "
            f"{FP32_ERROR_LIMIT} is the most an fp32 bundle may"
        )


def held_out_texts(work: Compilation, count: int) -> list[list[int]]:
    """About `count` tokens in sequences the bundle can hold."""
    longest = work.network.compiled_context
    if work.shapes:
        widest = max(work.shapes)
        longest = min(longest, longest_sequence((widest,)))
    return parity_texts(work.arguments.source, work.folder, work.network.spec.vocab, count, longest)


def float_logits(work: Compilation, texts: list[list[int]]) -> NDArray[np.float32]:
    """What the checkpoint itself says to texts: [all tokens, vocab], of an embedder the hidden states behind them."""
    pieces, of_rows = [], reference_hidden if work.arguments.task is ModelTask.EMBED else reference_logits
    for tokens in texts:
        with np.errstate(all="ignore"):  # what overflows is refused when the logits are compared
            pieces.append(of_rows(work.original, work.original_network, np.array(tokens)))
        work.progress.advance(len(tokens))
    return np.concatenate(pieces)


def parity_figures(work: Compilation, parity: Parity) -> dict[str, float]:
    """A comparison as the manifest keeps it: what counts of logits, or of vectors."""
    kl = {"kl": parity.kl.value, "kl_low": parity.kl.low, "kl_high": parity.kl.high}
    logits = {"top1": round(parity.top1, 6), **{name: round(value, 9) for name, value in kl.items()}}
    return {
        "tokens": float(parity.tokens),
        **({"cosine": round(parity.cosine, 9)} if work.arguments.task is ModelTask.EMBED else logits),
        "relative_error": float(f"{parity.relative_error:.3e}"),
    }
