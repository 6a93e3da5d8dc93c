"""How far a bundle is from its float reference, measured on an NPU, its emulator or the CPU, and kept in `parity`."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.specs import ModelTask, SampleSpec
from engine.compile.arguments import CompileArguments
from engine.compile.calibration.forward import reference_hidden, reference_logits
from engine.compile.check.baseline import baseline_figures
from engine.compile.check.parity import Opener, Parity, bundle_logits, compare_logits
from engine.compile.check.parity_text import parity_texts
from engine.compile.compilation import Compilation, Stage, describe
from engine.compile.plan import longest_sequence
from engine.compile.quantisation.methods.table import is_exact
from engine.compile.targets.npu import NPU_TARGETS
from engine.errors import CompileError
from engine.runtime.qnn.provider import EMULATOR, device_name, is_device, open_session, run_options
from engine.runtime.self_check import token_losses

Float32 = NDArray[np.float32]
FP32_ERROR_LIMIT = 1e-3
SAMPLE_TOKENS = 24  # that a bundle is tried with when it is loaded
# The emulator takes about 0.1 s for a row of a 5-million-parameter model; the CPU runs the same graphs much faster.
EMULATED_PARAMETERS = 20_000_000
EMULATED_PASSES = 24
CPU_PARAMETERS = 2_000_000_000
ON_CPU = "CPU, same graphs before they became binaries"
NOT_MEASURED = "not measured: too large for this machine"


@dataclass(frozen=True, slots=True)
class Measured:
    """The graphs to run, and where they lie. opener: None = on the CPU."""

    folder: Path
    manifest: Manifest
    opener: Opener | None = None
    is_emulated: bool = False


Measure = Callable[[Compilation, Measured], None]  # fills in `parity`; CompileError when a graph gives no numbers


def parity_stage(measure: Measure) -> Stage:
    """Run the finished bundle on the CPU; a float bundle that differs is a bug, so it fails."""
    return lambda work: measure(work, Measured(work.folder, describe(work)))


def quality_stage(measure: Measure) -> Stage:
    """Measure context binaries, or the graphs they were made of, where this machine can; then drop these."""

    def measured(work: Compilation) -> None:
        assert work.npu is not None
        way = choose_way(work.network.spec.parameters, bool(work.npu.shared), is_device())
        work.npu = msgspec.structs.replace(work.npu, parity_on=way)
        if way == ON_CPU:
            measure(work, Measured(work.graph_folder, msgspec.structs.replace(describe(work), graphs=work.onnx_graphs)))
        elif way != NOT_MEASURED:
            options = run_options(NPU_TARGETS[work.arguments.target], extra="")
            opener = partial(open_session, options=options, config={})
            measure(work, Measured(work.folder, describe(work), opener, way == EMULATOR))
        shutil.rmtree(work.graph_folder)

    return measured


def choose_way(parameters: int, shared: bool, device: bool) -> str:
    """Where to measure: the device, the emulator (never with shared binaries: they kill it), the CPU, or nowhere."""
    if device or (parameters <= EMULATED_PARAMETERS and not shared):
        return device_name()
    return ON_CPU if parameters <= CPU_PARAMETERS else NOT_MEASURED


def measure_pool(work: Compilation, graphs: Measured) -> None:
    """Of graphs over one pool; of an NPU bundle also the sample that it is tried with."""
    count = work.arguments.parity_tokens
    if graphs.is_emulated:
        count = min(count, EMULATED_PASSES * max(shape.rows for shape in work.shapes))
    texts = held_out_texts(work, count)
    work.progress.stage("parity", 2 * sum(map(len, texts)), "tokens")
    expected = float_logits(work, texts)
    found = bundle_logits(graphs.folder, graphs.manifest, texts, graphs.opener, tables=work.folder)
    work.progress.advance(len(expected))
    keep_parity(work, compare_logits(expected, found), texts, expected)
    if work.npu is not None and work.arguments.task is not ModelTask.EMBED:  # whose rows are no logits
        ids = texts[0][:SAMPLE_TOKENS]
        work.sample = SampleSpec(tuple(ids), tuple(round(float(loss), 3) for loss in token_losses(found, ids)))


def keep_parity(
    work: Compilation, parity: Parity, texts: list[list[int]], expected: Float32, rows: list[int] | None = None
) -> None:
    """Keep the figures, and what Q4_0 would lose beside them. expected: logits of the texts, or of these rows."""
    check_exact(work.arguments, parity)
    work.parity = parity_figures(work, parity)
    work.parity |= baseline_figures(work, texts, expected, rows)


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


def float_logits(work: Compilation, texts: list[list[int]]) -> Float32:
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
