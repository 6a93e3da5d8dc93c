"""Which quality a compilation gets, what is refused, and what choosing codes takes. Pure but for reading the source."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from engine.bundle.specs import ModelTask
from engine.compile.arguments import CompileArguments, QualityLevel
from engine.compile.plan import measured_on_text
from engine.compile.progress import ProgressSink
from engine.compile.quantisation.choose.form import CodeForm
from engine.compile.quantisation.choose.matrices import groups_of, kept_matrices
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import CHOOSABLE, head_method, method_of, quants_with
from engine.compile.sources.source import Source
from engine.compile.sources.task import names_in
from engine.errors import CompileError
from engine.models.network import Network

TEXT_TOKENS = 512
TOKENS = (32_768, 24_576, 16_384, 12_288, 8_192, 6_144, 5_120, 4_096)  # the first that patience allows, or the last
MOST_TOKENS, LEAST_TOKENS = TOKENS[0], TOKENS[-1]
HEAD_TOKENS = 2_048  # for balancing heads
BYTE_TOKENS = 8_192  # at most, for codes of 8 bits
BEST_TEXTS = 2  # times as many for the best quality
PATIENCE = 760.0  # seconds: more tokens than this allows are not taken
SCALE_TEXTS = 8  # that channel scales are searched on
SCALE_ROWS = 256  # of a matrix, that they are tried on
# Of two cores that others share: what numpy's float32 product of 2,048 numbers a side did there.
PRODUCTS = 80e9  # multiplications and additions a second
WEIGHT_SECONDS = 1.5e-7
SCALE_SECONDS = 3.2e-4  # for an input of a matrix, whose scales are searched
BASE = 300_000_000  # bytes of the compiler itself
FLOAT, DOUBLE = 4, 8
REMEMBERED = 2_000_000_000  # bytes of floats, and as many of what codes stand for, that are not made again


@dataclass(frozen=True, slots=True)
class Estimate:
    """seconds on two cores, bytes of memory at most, and the tokens that both are for."""

    seconds: float
    memory: int
    tokens: int


def estimated(network: Network, has_head: bool) -> Estimate:
    """For as many tokens as patience allows, but no fewer than `LEAST_TOKENS`."""
    estimates = (estimated_for(network, has_head, tokens) for tokens in TOKENS)
    return next(
        (found for found in estimates if found.seconds <= PATIENCE), estimated_for(network, has_head, LEAST_TOKENS)
    )


def estimated_for(network: Network, has_head: bool, tokens: int, has_rows: bool = False) -> Estimate:
    """Both grow with the tokens and with each size of the network. has_rows: codes have 8 bits.

    Products: two passes, the correlations of the inputs, the factor, the target, compensation, refinement, the errors;
    attention; channel scales. Memory: the streams of all tokens, the largest matrix in several forms, the correlations.
    """
    spec = network.spec
    layers = [group for layer in range(spec.layers) for group in _groups(network, layer)]
    matrices = [*layers, *([(spec.hidden, spec.vocab)] if has_head else [])]
    chosen = 5 if has_rows else 17
    products = sum(
        4 * tokens * n * rows + 2 * tokens * n * n + 6 * n**3 + chosen * rows * n * n for n, rows in matrices
    )
    products += 8 * tokens * TEXT_TOKENS * network.query_width * len(spec.attention_layers)
    sample = SCALE_TEXTS * TEXT_TOKENS  # of channel scales, each of which is tried on some rows
    weights = sum(n * rows for n, rows in matrices)
    seconds = weights * WEIGHT_SECONDS
    if not has_rows:
        products += sum(sample * n * (n + rows) + 3 * n**3 + 12 * SCALE_ROWS * n * n for n, rows in layers)
        seconds += sum(n for n, _ in layers) * SCALE_SECONDS
    seconds += products / PRODUCTS
    widest, largest = max(n for n, _ in layers), max(n * rows for n, rows in layers)
    streams = 2 * tokens * (3 * spec.hidden + widest) * FLOAT
    remembered = 2 * min(FLOAT * weights, REMEMBERED)
    return Estimate(seconds, BASE + remembered + streams + 12 * largest * FLOAT + 8 * widest * widest * DOUBLE, tokens)


def minutes_text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _groups(network: Network, layer: int) -> Iterator[tuple[int, int]]:
    """Inputs and outputs of the matrices of a layer, those that read the same inputs stacked."""
    spec = network.spec
    if layer in spec.attention_layers:
        yield spec.hidden, network.query_outputs + 2 * network.key_width
        yield network.query_width, spec.hidden
    elif spec.recurrent is not None:
        yield spec.hidden, spec.recurrent.inputs
        yield spec.recurrent.value_width, spec.hidden
    yield spec.hidden, 2 * spec.ffn
    yield spec.ffn, spec.hidden


RANGED = quants_with(Activations.INTEGER)  # have ranges of activations to choose


def resolve_quality(
    arguments: CompileArguments, source: Source, network: Network, progress: ProgressSink
) -> CompileArguments:
    """The arguments with the quality asked for, else the default. CompileError for one that cannot be had.

    A `--calibration` that is read for less than codes is told of.
    """
    resolved = _resolved(arguments, source, network)
    if resolved.calibration is not None and resolved.quality is QualityLevel.FAST:
        progress.note(_calibration_text(resolved))
    return resolved


def _resolved(arguments: CompileArguments, source: Source, network: Network) -> CompileArguments:
    if arguments.quality is QualityLevel.FAST:
        return arguments
    reason = _not_choosable(arguments, network) or _nothing_to_choose(arguments, source, network)
    if arguments.quality is None:
        return replace(arguments, quality=QualityLevel.FAST if reason else QualityLevel.GOOD)
    if reason:
        raise CompileError(f"--quality {arguments.quality} {reason}")
    return arguments


def _calibration_text(arguments: CompileArguments) -> str:
    """With weights that are rounded to nearest."""
    if measured := measured_on_text(arguments):
        return f"--calibration is read for {measured} alone: weights are rounded to nearest"
    return "--calibration is not read: weights are rounded to nearest, and nothing else of this bundle is measured"


def methods_of(arguments: CompileArguments, form: CodeForm, is_rotated: bool = False) -> tuple[str, ...]:
    """What is done, in order, by the names that the methods have. form: of the layers."""
    rotated = ("rotated stream and values",) if is_rotated else ()
    heads = ("balanced heads", *rotated) if balances(arguments) else ()
    ranges = ("ranges by error",) if arguments.quant in RANGED else ()
    chosen = ("targets from the float stream", "GPTQ")
    if form.has_rows:
        return (*heads, *chosen, *ranges)
    channels = () if arguments.lora else ("channel scales",)
    scales = "searched LPBQ multiples" if form.has_multiples else "searched scales"
    return (*heads, *channels, *chosen, scales, "refined codes and scales", *ranges)


def balances(arguments: CompileArguments) -> bool:
    """Whether heads are evened out where no code of a file would be lost by it."""
    has_rounded_caches = method_of(arguments).activations is not Activations.FLOAT16
    return arguments.quality is not QualityLevel.FAST and not arguments.lora and has_rounded_caches


def estimate_of(arguments: CompileArguments, network: Network) -> Estimate:
    """Of choosing codes for these arguments."""
    has_head = head_method(arguments).choice is not None and arguments.task is not ModelTask.EMBED
    choice, tokens = method_of(arguments).choice, estimated(network, has_head).tokens
    has_rows = choice is not None and choice.has_rows
    tokens = min(tokens, BYTE_TOKENS) if has_rows else tokens
    return estimated_for(
        network, has_head, tokens * (BEST_TEXTS if arguments.quality is QualityLevel.BEST else 1), has_rows
    )


def estimate_text(estimate: Estimate) -> str:
    time, memory = minutes_text(estimate.seconds), f"{estimate.memory / 1e9:.1f} GB"
    return f"about {time} on two cores and {memory} for {estimate.tokens:,} tokens of text"


def _not_choosable(arguments: CompileArguments, network: Network) -> str:
    """Why nothing but fast can be had; '' when more can."""
    if arguments.quant not in CHOOSABLE:
        return f"chooses codes of 4 and 8 bits: it is for --quant {', '.join(CHOOSABLE)}, not for {arguments.quant}"
    if network.details.diffusion is not None:
        return f"is for models that write one token after the other; {network.spec.family} denoises blocks"
    if network.own_forms:
        return f"does not know {network.own_forms} ({network.spec.family})"
    if network.details.experts is not None:
        return f"does not know layers with experts ({network.spec.family})"
    if arguments.whole_context:
        return "is not for --whole-context"
    return ""


def _nothing_to_choose(arguments: CompileArguments, source: Source, network: Network) -> str:
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
