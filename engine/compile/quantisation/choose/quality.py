"""`--quality`: which one a compilation gets, what is refused, what choosing codes takes; and its stages.

Even heads and turned streams come first, then codes that are chosen.
"""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from engine.bundle.specs import ModelTask, QualitySpec, RoundingError
from engine.bundle.weight_files import HEAD_BASIS, write_floats
from engine.compile.arguments import CompileArguments, QualityLevel
from engine.compile.calibration.encodings import WIDE_KV_DTYPE
from engine.compile.calibration.forward import embedded
from engine.compile.compilation import Compilation
from engine.compile.plan import measured_on_text
from engine.compile.progress import ProgressSink, peak_memory
from engine.compile.quantisation.choose.channels import SCALE_ROWS, ChannelScales
from engine.compile.quantisation.choose.choose import Chooser, ChosenCheckpoint, CodesFolder, Forms, steps_of
from engine.compile.quantisation.choose.form import CodeForm, OutputError
from engine.compile.quantisation.choose.matrices import all_tensors, kept_matrices
from engine.compile.quantisation.choose.wide import REMEMBERED, Aim, Losses, widened
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import CHOOSABLE, head_method, method_of, quants_with, wide_method
from engine.compile.quantisation.transforms.heads import balancing_edits, head_statistics, smoothing_edits
from engine.compile.quantisation.transforms.rotation import rotation_edits
from engine.compile.quantisation.transforms.transformed import TransformedCheckpoint, head_basis
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
# Of two cores that others share: what numpy's float32 product of 2,048 numbers a side did there.
PRODUCTS = 80e9  # multiplications and additions a second
WEIGHT_SECONDS = 1.5e-7
SCALE_SECONDS = 3.2e-4  # for an input of a matrix, whose scales are searched
BASE = 300_000_000  # bytes of the compiler itself
FLOAT, DOUBLE = 4, 8


@dataclass(frozen=True, slots=True)
class Estimate:
    """seconds on two cores, bytes of memory at most, and the tokens that both are for."""

    seconds: float
    memory: int
    tokens: int


def estimated(network: Network, has_head: bool) -> Estimate:
    """For as many tokens as patience allows, but no fewer than `LEAST_TOKENS`."""
    estimates = [estimated_for(network, has_head, tokens) for tokens in TOKENS]
    return next((found for found in estimates if found.seconds <= PATIENCE), estimates[-1])


def estimated_for(network: Network, has_head: bool, tokens: int, has_rows: bool = False) -> Estimate:
    """Both grow with the tokens and with each size of the network. has_rows: codes have 8 bits. Products: two passes,
    the correlations of the inputs, the factor, the target, compensation, refinement, the errors; attention; channel
    scales. Memory: the streams of all tokens, the largest matrix in several forms, the correlations."""
    spec = network.spec
    layers = [group for layer in range(spec.layers) for group in _groups(network, layer)]
    matrices, chosen = [*layers, *([(spec.hidden, spec.vocab)] if has_head else [])], 5 if has_rows else 17
    products = sum(tokens * (4 * n * m + 2 * n * n) + 6 * n**3 + chosen * m * n * n for n, m in matrices)
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
    """The arguments with the quality asked for, else the default. CompileError for one that cannot be had. A
    `--calibration` that is read for less than codes is told of."""
    if arguments.quality is not QualityLevel.FAST:
        reason = _not_choosable(arguments, network) or _nothing_to_choose(arguments, source, network)
        if reason and arguments.quality is not None:
            raise CompileError(f"--quality {arguments.quality} {reason}")
        usual = QualityLevel.FAST if reason else QualityLevel.GOOD
        arguments = replace(arguments, quality=arguments.quality or usual)
    if arguments.calibration is not None and arguments.quality is QualityLevel.FAST:
        measured = measured_on_text(arguments)
        read, rest = f"read for {measured} alone", ""
        if not measured:
            read, rest = "not read", ", and nothing else of this bundle is measured"
        progress.note(f"--calibration is {read}: weights are rounded to nearest{rest}")
    return arguments


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
    tokens *= BEST_TEXTS if arguments.quality is QualityLevel.BEST else 1
    return estimated_for(network, has_head, tokens, has_rows)


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
        kept, every = kept_matrices(arguments, checkpoint, named), set(all_tensors(named))
    reason = "would choose codes that the file has: its matrices have 4 bits already, and they are kept"
    return reason if kept == every else ""


BALANCE_TEXT_TOKENS = 256
SEED = 0  # of the rotation


def balance_stage(work: Compilation) -> None:
    """Fold factors into keys, values and what reads them; of integer graphs with outliers turn the stream as well, and
    divide channels of feed-forwards that stand out. Not with --quality fast, where adapters are to fit, where caches
    are half precision, or codes of a file are kept."""
    if not balances(work.arguments) or kept_matrices(work.arguments, work.checkpoint, work.network):
        return
    length = min(BALANCE_TEXT_TOKENS, work.network.compiled_context)
    texts = work.calibration_texts(length, HEAD_TOKENS // length)
    work.progress.stage("heads", work.network.spec.layers, "layers")
    # Values are measured before they are turned: afterwards no channel's own factor could be folded in.
    heads, stream = head_statistics(work.checkpoint, work.network, texts, work.progress.advance)
    edits = balancing_edits(work.network, heads)
    is_integer = method_of(work.arguments).activations is Activations.INTEGER
    if is_integer:
        edits = replace(edits, linears={**edits.linears, **smoothing_edits(work.network, stream.inner)})
    work.checkpoint = TransformedCheckpoint(work.checkpoint, edits, work.network.details.norm_offset)
    # Vectors leave at the final norm and would be turned, rows of images come as they are; floats share no range.
    is_fixed = work.arguments.task is ModelTask.EMBED or work.network.reads_images
    if not is_integer or is_fixed or not stream.has_outliers:
        return
    # Every number of a token then is about as large as its root mean square. A tied head gets weights of its own.
    edits, offset = rotation_edits(work.network, SEED), work.network.details.norm_offset
    work.checkpoint, work.is_rotated = TransformedCheckpoint(work.checkpoint, edits, offset), True
    work.network = replace(work.network, spec=msgspec.structs.replace(work.network.spec, tied_head=False))
    work.progress.note("the stream has outliers: it is rotated, and the head has weights of its own")


WIDE_TOKENS = 512  # of calibration text that mixtures are measured on
CACHE_SHARE = 0.2  # of what `best` may lose: 8-bit caches that lose more are 16-bit ones
CODES = "codes"  # folder in the unfinished bundle


def choose_codes_stage(work: Compilation) -> None:
    """Choose the codes of all matrices that are not kept, unless they are rounded to nearest when they are written."""
    arguments, network = work.arguments, work.network
    if arguments.quality is QualityLevel.FAST:
        return
    estimate, forms = estimate_of(arguments, network), forms_of(arguments)
    work.progress.note(f"quality {arguments.quality}: {estimate_text(estimate)}")
    begin = time.monotonic()
    length = min(TEXT_TOKENS, network.compiled_context)
    texts = work.calibration_texts(length, estimate.tokens // length)
    folder = work.folder / CODES
    folder.mkdir()
    codes, kept = CodesFolder(folder), kept_matrices(arguments, work.checkpoint, network)
    share = _widen(work, forms, texts, kept)
    if not forms.layers.has_rows:
        _scale_channels(work, forms.layers, texts, kept | work.wide)
    work.progress.stage(f"quality ({arguments.quality})", steps_of(network, forms), "matrices")
    chooser = Chooser(work.checkpoint, network, forms, codes, work.progress.advance, kept, work.wide)
    chooser.run(texts)
    work.checkpoint = ChosenCheckpoint(work.checkpoint, codes)
    methods, tokens = methods_of(arguments, forms.layers, work.is_rotated), sum(map(len, texts))
    seconds, memory = round(time.monotonic() - begin, 1), peak_memory()[0]
    errors = {kind: _shares(error) for kind, error in chooser.errors.items()}
    work.quality = QualitySpec(str(arguments.quality), methods, tokens, seconds, memory, wide=share, errors=errors)


def drop_codes_stage(work: Compilation) -> None:
    """All weights are written by now; in which basis keys and values are is told beside them."""
    if (basis := head_basis(work.checkpoint, work.network)) is not None:
        write_floats(work.folder / HEAD_BASIS, basis)
    if isinstance(work.checkpoint, ChosenCheckpoint):
        work.checkpoint = work.checkpoint.inner
        shutil.rmtree(work.folder / CODES)


def _widen(work: Compilation, forms: Forms, texts: list[list[int]], kept: frozenset[str]) -> float:
    """Find the matrices that get 8 bits, and their share of the weights; for `best` also whether caches get 16. Vectors
    have no predictions to lose."""
    has_rows, is_best = forms.layers.has_rows, work.arguments.quality is QualityLevel.BEST
    if work.arguments.task is ModelTask.EMBED or (has_rows and not is_best):
        return 0.0
    work.progress.stage("8 bits", 1, "searches")
    aim = Aim.of(work.network, is_best or method_of(work.arguments).activations is Activations.FLOAT32)
    some = texts[: -(-WIDE_TOKENS // len(texts[0]))]
    # What llama.cpp would make of the file: a turned stream loses something else.
    target = aim.target(work.original, work.original_network, some)
    losses = Losses(work.checkpoint, work.network, some)
    of_caches = _lost_by_caches(work, losses, target)
    work.progress.advance(1)
    if has_rows:
        return 0.0
    found = widened(losses, forms, kept, target, of_caches)
    work.wide = found.wide
    work.progress.note(
        f"{100 * found.share:.0f} % of the layers' weights get 8 bits, so that KL {found.kl:.4f} is expected beside "
        f"{found.target:.4f} of llama.cpp's {aim.name} times {aim.share}"
    )
    return round(found.share, 4)


def _lost_by_caches(work: Compilation, losses: Losses, target: float) -> float:
    """KL [nats] of 8-bit caches, 0.0 without them; `best` has none where they lose much of what it may lose."""
    if method_of(work.arguments).activations is not Activations.INTEGER:
        return 0.0
    lost = losses.kl({}, has_byte_caches=True)
    if work.arguments.quality is not QualityLevel.BEST or lost <= CACHE_SHARE * target:
        return lost
    work.progress.note(
        f"keys and values get 16 bits, twice the memory: with 8 they lose KL {lost:.4f}, more than "
        f"{CACHE_SHARE} of {target:.4f}"
    )
    work.kv_dtype = WIDE_KV_DTYPE
    return 0.0


def _scale_channels(work: Compilation, form: CodeForm, texts: list[list[int]], kept: frozenset[str]) -> None:
    """Adapters read the inputs and add to the outputs that scales would change: they keep theirs."""
    if work.arguments.lora:
        return
    work.progress.stage("channel scales", work.network.spec.layers, "layers")
    finder = ChannelScales(work.checkpoint, work.network, form, sum(map(len, texts)), kept)
    edits = finder.edits(embedded(work.checkpoint, work.network, texts[:SCALE_TEXTS]), work.progress.advance)
    work.checkpoint = TransformedCheckpoint(work.checkpoint, edits, work.network.details.norm_offset)


def forms_of(arguments: CompileArguments) -> Forms:
    """How layers and head are stored. ValueError when there is nothing to choose in the layers."""
    methods = method_of(arguments), head_method(arguments), wide_method(arguments)
    layers, head, wide = (CodeForm.of(method, arguments) for method in methods)
    if layers is None:
        raise ValueError(f"{arguments.quant} has no codes to choose")
    return Forms(layers, None if arguments.task is ModelTask.EMBED else head, wide)


def _shares(error: OutputError) -> RoundingError:
    outputs = error.outputs or 1.0  # outputs that are all 0 have no error
    return RoundingError(float(f"{error.nearest / outputs:.3e}"), float(f"{error.chosen / outputs:.3e}"))
