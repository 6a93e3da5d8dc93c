"""The stages of `--quality`: even heads and turned streams, then codes that are chosen."""

import shutil
import time
from dataclasses import replace

import msgspec

from engine.bundle.specs import ModelTask, QualitySpec, RoundingError
from engine.bundle.weight_files import HEAD_BASIS, write_floats
from engine.compile.arguments import CompileArguments, QualityLevel
from engine.compile.calibration.encodings import WIDE_KV_DTYPE
from engine.compile.compilation import Compilation
from engine.compile.progress import peak_memory
from engine.compile.quantisation.choose.channels import ChannelScales
from engine.compile.quantisation.choose.choose import Chooser, ChosenCheckpoint, CodesFolder, Forms, embedded, steps_of
from engine.compile.quantisation.choose.form import CodeForm, OutputError
from engine.compile.quantisation.choose.matrices import kept_matrices
from engine.compile.quantisation.choose.quality import (
    HEAD_TOKENS,
    SCALE_TEXTS,
    TEXT_TOKENS,
    balances,
    estimate_of,
    estimate_text,
    methods_of,
)
from engine.compile.quantisation.choose.wide import Aim, Losses, widened
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import head_method, method_of, wide_method
from engine.compile.quantisation.transforms.heads import (
    StreamStatistics,
    balancing_edits,
    head_statistics,
    smoothing_edits,
)
from engine.compile.quantisation.transforms.rotation import rotation_edits
from engine.compile.quantisation.transforms.transformed import TransformedCheckpoint, head_basis

BALANCE_TEXT_TOKENS = 256
SEED = 0  # of the rotation
# A stream whose largest number is so many times as large as its own token, and as the middle one: 16 bits that reach it
# leave the middle token less than ten.
OUTLIER, QUIET = 6.0, 64.0


def balance_stage(work: Compilation) -> None:
    """Fold factors into keys, values and what reads them; of integer graphs with outliers turn the stream as well, and
    divide channels of feed-forwards that stand out.

    Not with --quality fast, where adapters are to fit, where caches are half precision, or codes of a file are kept.
    """
    if not balances(work.arguments) or kept_matrices(work.arguments, work.checkpoint, work.network):
        return
    length = min(BALANCE_TEXT_TOKENS, work.network.compiled_context)
    texts = work.calibration_texts(length, HEAD_TOKENS // length)
    work.progress.stage("heads", work.network.spec.layers, "layers")
    # Values are measured before they are turned: afterwards no channel's own factor could be folded in.
    heads, stream = head_statistics(work.checkpoint, work.network, texts, work.progress.advance)
    edits = balancing_edits(work.network, heads)
    if method_of(work.arguments).activations is Activations.INTEGER:
        edits = replace(edits, linears={**edits.linears, **smoothing_edits(work.network, stream.inner)})
    work.checkpoint = TransformedCheckpoint(work.checkpoint, edits, work.network.details.norm_offset)
    if _wants_rotation(work, stream):
        _rotate(work)


def _wants_rotation(work: Compilation, stream: StreamStatistics) -> bool:
    """Vectors leave at the final norm and would be turned, rows of images come as they are; floats have no range to
    share."""
    if method_of(work.arguments).activations is not Activations.INTEGER or work.arguments.task is ModelTask.EMBED:
        return False
    if work.network.reads_images:
        return False
    return stream.largest > OUTLIER * stream.beside and stream.largest > QUIET * stream.quiet


def _rotate(work: Compilation) -> None:
    """Every number of a token then is about as large as its root mean square. A tied head gets weights of its own."""
    edits, offset = rotation_edits(work.network, SEED), work.network.details.norm_offset
    work.checkpoint, work.is_rotated = TransformedCheckpoint(work.checkpoint, edits, offset), True
    work.network = replace(work.network, spec=msgspec.structs.replace(work.network.spec, tied_head=False))
    work.progress.note("the stream has outliers: it is rotated, and the head has weights of its own")


def _told(work: Compilation, methods: tuple[str, ...], texts: list[list[int]], begin: float) -> QualitySpec:
    """What was done, and what it has cost since then."""
    seconds, tokens = round(time.monotonic() - begin, 1), sum(map(len, texts))
    return QualitySpec(str(work.arguments.quality), methods, tokens, seconds, peak_memory()[0])


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
    told = _told(work, methods_of(arguments, forms.layers, work.is_rotated), texts, begin)
    errors = {kind: _shares(error) for kind, error in chooser.errors.items()}
    work.quality = msgspec.structs.replace(told, wide=share, errors=errors)


def drop_codes_stage(work: Compilation) -> None:
    """All weights are written by now; in which basis keys and values are is told beside them."""
    if (basis := head_basis(work.checkpoint, work.network)) is not None:
        write_floats(work.folder / HEAD_BASIS, basis)
    if isinstance(work.checkpoint, ChosenCheckpoint):
        work.checkpoint = work.checkpoint.inner
        shutil.rmtree(work.folder / CODES)


def _widen(work: Compilation, forms: Forms, texts: list[list[int]], kept: frozenset[str]) -> float:
    """Find the matrices that get 8 bits, and their share of the weights; for `best` also whether caches get 16.

    Vectors have no predictions to lose.
    """
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
