"""Which quality a compilation gets, and what is refused."""

from dataclasses import replace

from engine.bundle.task import ModelTask
from engine.compile.arguments import CompileArguments, QualityLevel
from engine.compile.calibrated.estimate import (
    Estimate,
    estimated,
    estimated_best,
    estimated_pass,
    minutes_text,
)
from engine.compile.calibrated.form import CodeForm
from engine.compile.calibrated.matrices import groups_of, kept_matrices
from engine.compile.checks import measured_on_text
from engine.compile.learned.supported import missing_extra, unsupported
from engine.compile.progress import ProgressSink
from engine.compile.quantization.method import Activations
from engine.compile.quantization.table import CHOOSABLE, head_method, method_of, quants_with
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
    settled = _settled(arguments, source, network)
    if settled.calibration is not None and settled.quality is QualityLevel.FAST:
        progress.note(_calibration_text(settled))
    return settled


def _settled(arguments: CompileArguments, source: Source, network: Network) -> CompileArguments:
    if arguments.quality is QualityLevel.FAST:
        return arguments
    reason = _unfit(arguments, network) or _kept(arguments, source, network)
    if arguments.quality is None:
        return replace(arguments, quality=QualityLevel.FAST if reason else QualityLevel.GOOD)
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


def methods_of(arguments: CompileArguments, form: CodeForm | None, is_rotated: bool = False) -> tuple[str, ...]:
    """What is done, in order, by the names that the methods have. form: of the layers, None = nothing to choose."""
    rotated = ("rotated stream and values",) if is_rotated else ()
    heads = ("balanced heads", *rotated) if balances(arguments) else ()
    ranges = ("ranges by error",) if arguments.quant in RANGED else ()
    if form is None:
        return (*heads, *ranges)
    channels = () if arguments.lora else ("channel scales",)
    scales = "searched LPBQ multiples" if form.has_multiples else "searched scales"
    chosen = ("targets from the float stream", "GPTQ", scales, "refined codes and scales")
    return (*heads, *channels, *chosen, *ranges)


def balances(arguments: CompileArguments) -> bool:
    """Whether heads are evened out where no code of a file would be lost by it."""
    has_rounded_caches = method_of(arguments).activations is not Activations.FLOAT16
    return arguments.quality is not QualityLevel.FAST and not arguments.lora and has_rounded_caches


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
    """Why there is nothing to choose in a file: all its codes are stored as they come; '' when some are not."""
    with source.tensors() as checkpoint:
        named = names_in(checkpoint, network)
        kept = kept_matrices(arguments, checkpoint, named)
        every = {
            name for layer in range(network.spec.layers) for group in groups_of(named, layer) for name in group.tensors
        }
    return (
        "would choose codes that the file has: its matrices have 4 bits already, and they are kept"
        if kept == every
        else ""
    )
