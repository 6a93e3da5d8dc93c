"""Which quality a compilation gets, and what is refused."""

from dataclasses import replace

from engine.bundle.task import ModelTask
from engine.compile.arguments import CompileArguments, QualityLevel
from engine.compile.calibrated.estimate import (
    DEFAULT_SECONDS,
    Estimate,
    estimated,
    estimated_best,
    estimated_pass,
    minutes_text,
)
from engine.compile.calibrated.form import CodeForm
from engine.compile.calibrated.matrices import groups_of
from engine.compile.checks import measured_on_text
from engine.compile.learned.supported import missing_extra, unsupported
from engine.compile.progress import ProgressSink
from engine.compile.quantization.blocks import Int4Blocks
from engine.compile.quantization.int4 import is_kept
from engine.compile.quantization.method import Activations
from engine.compile.quantization.table import CHOOSABLE, head_method, method_of, quants_with
from engine.compile.rounding.refinement import USUAL, Effort
from engine.compile.source import Source
from engine.compile.task import names_in
from engine.errors import CompileError
from engine.models.network import Network

RANGED = quants_with(Activations.INTEGER)  # have ranges of activations to choose


def settle_quality(
    arguments: CompileArguments, source: Source, network: Network, progress: ProgressSink
) -> CompileArguments:
    """The arguments with the quality asked for, else the default. CompileError for one that cannot be had.

    A `--calibration` that is read for less than codes is told of.
    """
    settled = _settled(arguments, source, network, progress)
    if settled.calibration is not None and settled.quality is QualityLevel.FAST:
        progress.note(_calibration_text(settled))
    return settled


def _settled(arguments: CompileArguments, source: Source, network: Network, progress: ProgressSink) -> CompileArguments:
    if arguments.quality is QualityLevel.FAST:
        return arguments
    reason = _unfit(arguments, network) or _kept(arguments, source, network)
    if arguments.quality is None:
        return replace(arguments, quality=QualityLevel.FAST if reason else _default(arguments, network, progress))
    if reason:
        raise CompileError(f"--quality {arguments.quality} {reason}")
    if arguments.quality is QualityLevel.BEST and (reason := _unlearned(arguments, network)):
        raise CompileError(f"--quality best {reason}")
    return arguments


def _calibration_text(arguments: CompileArguments) -> str:
    """With weights that are rounded to nearest."""
    if measured := measured_on_text(arguments):
        return f"--calibration is read for {measured} alone: weights are rounded to nearest"
    return "--calibration is not read: weights are rounded to nearest, and nothing else of this bundle is measured"


def _unlearned(arguments: CompileArguments, network: Network) -> str:
    """Why nothing can be learned behind good; '' when something can."""
    if method_of(arguments).choice is None:
        return f"learns codes of 4 bits, of which --quant {arguments.quant} has none; take --quality good"
    return missing_extra() or unsupported(network)


def methods_of(arguments: CompileArguments, form: CodeForm | None, effort: Effort = USUAL) -> tuple[str, ...]:
    """What is done, in order, by the names that the methods have. form: of the layers, None = nothing to choose."""
    heads = () if arguments.lora else ("balanced heads",)
    ranges = ("ranges by error",) if arguments.quant in RANGED else ()
    if form is None:
        return (*heads, *ranges)
    channels = () if arguments.lora else ("channel scales",)
    scales = "searched LPBQ multiples" if form.has_multiples else "searched scales"
    chosen = ("targets from the float stream", "GPTQ", scales, "refined codes and scales")
    pairs = ("pairs of codes",) if effort.sweeps else ()
    orders = ("two orders of columns",) if effort.again else ()
    return (*heads, *channels, *chosen, *pairs, *orders, *ranges)


def estimate_of(arguments: CompileArguments, network: Network) -> Estimate:
    """Of choosing codes for these arguments, without what is learned."""
    if method_of(arguments).choice is None:
        return estimated_pass(network)
    has_head = head_method(arguments).choice is not None and arguments.task is not ModelTask.EMBED
    return estimated_best(network, has_head) if arguments.quality is QualityLevel.BEST else estimated(network, has_head)


def estimate_text(estimate: Estimate) -> str:
    """In words."""
    time, memory = minutes_text(estimate.seconds), f"{estimate.memory / 1e9:.1f} GB"
    return f"about {time} on two cores and {memory} for {estimate.tokens:,} tokens of text"


def _default(arguments: CompileArguments, network: Network, progress: ProgressSink) -> QualityLevel:
    estimate = estimate_of(arguments, network)
    if estimate.seconds <= DEFAULT_SECONDS:
        return QualityLevel.GOOD
    progress.note(f"weights are rounded to nearest; --quality good would take {estimate_text(estimate)}")
    return QualityLevel.FAST


def _unfit(arguments: CompileArguments, network: Network) -> str:
    """Why nothing but fast can be had; '' when more can."""
    if arguments.quant not in (*CHOOSABLE, *RANGED):
        quants = ", ".join(dict.fromkeys((*CHOOSABLE, *RANGED)))
        return f"chooses codes of 4 bits and ranges: it is for --quant {quants}, not for {arguments.quant}"
    if network.details.diffusion is not None:
        return f"is for models that write one token after the other; {network.spec.family} denoises blocks"
    if arguments.whole_context:
        return "is not for --whole-context"
    return ""


def _kept(arguments: CompileArguments, source: Source, network: Network) -> str:
    """Why codes that a file has already are stored as they come; '' when it has none. Files mix types by layer."""
    form = CodeForm.of(method_of(arguments), arguments)
    if form is None or form.has_multiples:
        return ""
    with source.tensors() as checkpoint:
        named = names_in(checkpoint, network)
        groups = (group for layer in range(network.spec.layers) for group in groups_of(named, layer))
        names = [name for group in groups for name in group.tensors]
        first_rows = (checkpoint.blocks(name, 0, 1) for name in names if checkpoint.is_four_bit(name))
        kept = sum(isinstance(row, Int4Blocks) and is_kept(row, form.block, arguments.asymmetric) for row in first_rows)
    if not kept:
        return ""
    some = "" if kept == len(names) else f"{kept} of "
    return f"would choose codes that the file has: {some}its matrices have 4 bits already, and they are kept"
