"""How far a bundle is from its float reference, measured on an NPU, its emulator or the CPU, and kept in `parity`."""

import shutil
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from engine.bundle.manifest import Manifest
from engine.bundle.specs import ModelTask, QualitySpec, SampleSpec
from engine.compile.arguments import CompileArguments, QualityLevel
from engine.compile.calibration.forward import reference_hidden, reference_logits
from engine.compile.check.parity import (
    Parity,
    bundle_logits,
    compare_logits,
    joined,
    mean_divergence,
    parity_texts,
    plain_cpu,
)
from engine.compile.compilation import Compilation, describe
from engine.compile.plan import longest_sequence
from engine.compile.quantisation.choose.wide import q4_0_of
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import is_exact, method_of, quants_with
from engine.compile.sources.checkpoint import Float32, RoundedCheckpoint
from engine.compile.targets.npu import NPU_TARGETS
from engine.errors import CompileError
from engine.runtime.qnn.provider import EMULATOR, device_name, is_device, open_session, run_options
from engine.runtime.reading import token_losses
from engine.runtime.sessions import Provider

FP32_ERROR_LIMIT = 1e-3
HARMLESS = 0.01  # nats: nobody needs a warning of less
Q4_0 = "q4_0_kl"  # what llama.cpp's Q4_0 would lose of the same floats on the same text
SAMPLE_TOKENS = 24  # that a bundle is tried with when it is loaded
# The emulator takes about 0.1 s for a row of a 5-million-parameter model; the CPU runs the same graphs much faster.
EMULATED_PARAMETERS = 20_000_000
EMULATED_PASSES = 24
CPU_PARAMETERS = 2_000_000_000
ON_CPU = "CPU, same graphs before they became binaries"
NOT_MEASURED = "not measured: too large for this machine"


# Runs the graphs of a manifest and fills in `parity`. CompileError when a graph gives no numbers.
Measure = Callable[[Compilation, Manifest, Provider], None]


def parity_stage(work: Compilation, measure: Measure) -> None:
    """Run the finished bundle on the CPU; a float bundle that differs is a bug, so it fails."""
    measure(work, describe(work), plain_cpu())


def quality_stage(work: Compilation, measure: Measure) -> None:
    """Measure context binaries, or the graphs they were made of, where this machine can; then drop these."""
    assert work.npu is not None
    way = choose_way(work.network.spec.parameters, bool(work.npu.shared), is_device())
    work.npu = msgspec.structs.replace(work.npu, parity_on=way)
    if way == ON_CPU:
        folder = work.pipeline.graph_folder
        graphs = [msgspec.structs.replace(graph, file=f"{folder}/{graph.file}") for graph in work.onnx_graphs]
        measure(work, msgspec.structs.replace(describe(work), graphs=tuple(graphs)), plain_cpu())
    elif way != NOT_MEASURED:
        options = run_options(NPU_TARGETS[work.arguments.target], extra="")
        measure(work, describe(work), Provider(way, partial(open_session, options=options, config={})))
    shutil.rmtree(work.graph_folder)


def choose_way(parameters: int, shared: bool, device: bool) -> str:
    """Where to measure: the device, the emulator (never with shared binaries: they kill it), the CPU, or nowhere."""
    if device or (parameters <= EMULATED_PARAMETERS and not shared):
        return device_name()
    return ON_CPU if parameters <= CPU_PARAMETERS else NOT_MEASURED


def measure_logits(work: Compilation, manifest: Manifest, provider: Provider) -> None:
    """Against those of the checkpoint; of an NPU bundle also the sample that it is tried with."""
    count, is_fused = work.arguments.parity_tokens, manifest.fused is not None
    if provider.device == EMULATOR:
        count = min(count, EMULATED_PASSES * (1 if is_fused else max(shape.rows for shape in work.shapes)))
    texts = held_out_texts(work, count)
    work.progress.stage("parity", 2 * sum(map(len, texts)), "tokens")
    expected = float_logits(work, texts)
    found = bundle_logits(work.folder, manifest, texts, provider=provider)
    work.progress.advance(len(expected))
    check_overflow(work.arguments, found)
    parity = compare_logits(expected, found)
    check_exact(work.arguments, parity)
    work.parity = parity_figures(work, parity)
    work.parity |= baseline_figures(work, texts, expected)
    has_sample = work.npu is not None and not is_fused and work.arguments.task is not ModelTask.EMBED
    if has_sample:  # an embedder's rows are no logits, and fused graphs do not give those of a prompt
        ids = texts[0][:SAMPLE_TOKENS]
        work.sample = SampleSpec(tuple(ids), tuple(round(float(loss), 3) for loss in token_losses(found, ids)))


def check_overflow(arguments: CompileArguments, logits: Float32) -> None:
    """CompileError when activations were too large for half precision; Gemma 3 has such."""
    is_half = method_of(arguments).activations is Activations.FLOAT16
    if is_half and not np.isfinite(logits).all():
        better = " or ".join(quants_with(Activations.INTEGER))
        raise CompileError(f"--quant {arguments.quant}: the model overflows half precision; take --quant {better}")


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
    return joined(pieces)


def parity_figures(work: Compilation, parity: Parity) -> dict[str, float]:
    """A comparison as the manifest keeps it: what counts of logits, or of vectors."""
    logits = {
        f"{name}{end}": round(value, digits)
        for name, each, digits in (("top1", parity.top1, 6), ("kl", parity.kl, 9))
        for end, value in (("", each.value), ("_low", each.low), ("_high", each.high))
    }
    return {
        "tokens": float(parity.tokens),
        **({"cosine": round(parity.cosine, 9)} if work.arguments.task is ModelTask.EMBED else logits),
        "relative_error": float(f"{parity.relative_error:.3e}"),
    }


def baseline_figures(work: Compilation, texts: list[list[int]], expected: Float32) -> dict[str, float]:
    """Q4_0's mean KL [nats] beside that in `work.parity`; nothing where the bundle loses next to nothing.

    expected: the floats' logits of texts.
    """
    has_experts = work.network.details.experts is not None  # theirs is not measured
    if has_experts or work.arguments.task is ModelTask.EMBED or work.parity.get("kl", 0.0) <= HARMLESS:
        return {}
    network = work.original_network
    rounded = RoundedCheckpoint(work.original, q4_0_of(network))
    with np.errstate(all="ignore"):  # what overflows is refused when the logits are compared
        found = joined([reference_logits(rounded, network, np.array(tokens)) for tokens in texts])
    return {Q4_0: round(mean_divergence(expected, found), 9)}


def baseline_warning(parity: dict[str, float], quality: QualitySpec | None) -> str:
    """In plain words, '' where Q4_0 would lose as much or more, or was not measured."""
    kl, baseline = parity.get("kl", 0.0), parity.get(Q4_0)
    if baseline is None or kl <= baseline:
        return ""
    is_chosen = quality is not None and quality.level != QualityLevel.FAST
    interval = f" ({parity['kl_low']:.3f} to {parity['kl_high']:.3f})" if "kl_low" in parity else ""
    advice = "8 bits lose less, and so may text like yours (--calibration)" if is_chosen else "try --quality good"
    return (
        f"warning: this bundle loses more than llama.cpp's Q4_0 of the same weights would: KL {kl:.3f}{interval} "
        f"against {baseline:.3f} on the same text; {advice}"
    )
