"""Which quality a compilation gets, and what is refused."""

from dataclasses import replace

from engine.bundle.task import ModelTask
from engine.compile.arguments import CompileArguments, Layout, QualityLevel
from engine.compile.calibrated.estimate import Estimate, estimated, estimated_best, estimated_pass, minutes_text
from engine.compile.calibrated.form import CodeForm
from engine.compile.calibrated.matrices import groups_of
from engine.compile.layout import layout_of
from engine.compile.learned.supported import missing_extra, unsupported
from engine.compile.progress import ProgressSink
from engine.compile.quantization.int4 import KEPT_BLOCK
from engine.compile.quantization.method import Activations
from engine.compile.quantization.table import CHOOSABLE, head_method, method_of, quants_with
from engine.compile.source import Source
from engine.compile.task import names_in
from engine.errors import CompileError
from engine.models.network import Network

RANGED = quants_with(Activations.INTEGER)  # have ranges of activations to choose
DEFAULT_SECONDS = 180.0  # as long as good may take where nobody asked for it


def settle_quality(
    arguments: CompileArguments, source: Source, network: Network, progress: ProgressSink
) -> CompileArguments:
    """The arguments with the quality asked for, else the default. CompileError for one that cannot be had."""
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


def _unlearned(arguments: CompileArguments, network: Network) -> str:
    """Why nothing can be learned behind good; '' when something can."""
    if method_of(arguments).choice is None:
        return f"learns codes of 4 bits, of which --quant {arguments.quant} has none; take --quality good"
    return missing_extra() or unsupported(network)


def methods_of(arguments: CompileArguments, form: CodeForm | None) -> tuple[str, ...]:
    """What is done, in order, by the names that the methods have. form: of the layers, None = nothing to choose."""
    heads = () if arguments.lora or layout_of(arguments) is Layout.SEGMENTS else ("balanced heads",)
    ranges = ("ranges by error",) if arguments.quant in RANGED else ()
    if form is None:
        return (*heads, *ranges)
    channels = () if arguments.lora else ("channel scales",)
    scales = "searched LPBQ multiples" if form.has_multiples else "searched scales"
    chosen = ("targets from the float stream", "GPTQ", scales, "refined codes and scales")
    return (*heads, *channels, *chosen, *ranges)


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
    """Why nothing is left to choose in matrices that are stored as they come; '' when there is."""
    form = CodeForm.of(method_of(arguments), arguments)
    if form is None or form.has_multiples or form.block != KEPT_BLOCK or arguments.asymmetric:
        return ""
    with source.tensors() as checkpoint:
        named = names_in(checkpoint, network)
        names = (name for group in groups_of(named, 0) for name in group.tensors)
        is_four_bit = any(checkpoint.is_four_bit(name) for name in names)
    return "has nothing to choose: the file's matrices have 4 bits already, and they are kept" if is_four_bit else ""
