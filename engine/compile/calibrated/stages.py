"""The compiler's stages around weights that are chosen: choose codes before they are written, drop them afterwards."""

import shutil
import time

from engine.bundle.quality_spec import QualitySpec, RoundingError
from engine.bundle.task import ModelTask
from engine.compile.arguments import CompileArguments, QualityLevel
from engine.compile.calibrated.channels import ChannelScales
from engine.compile.calibrated.checkpoint import ChosenCheckpoint
from engine.compile.calibrated.choose import Chooser, Forms, embedded, steps_of
from engine.compile.calibrated.codes_file import CodesFolder
from engine.compile.calibrated.estimate import SCALE_TEXTS, TEXT_TOKENS
from engine.compile.calibrated.form import CodeForm, OutputError
from engine.compile.calibrated.learning import learner_of, learning_errors, plan_of, with_learning
from engine.compile.calibrated.matrices import kept_matrices
from engine.compile.calibrated.settle import estimate_of, estimate_text, methods_of
from engine.compile.compilation import Compilation
from engine.compile.memory import peak_memory
from engine.compile.quantization.table import head_method, method_of
from engine.compile.texts.documents import calibration_documents
from engine.compile.texts.sequences import token_sequences
from engine.compile.transforms.checkpoint import TransformedCheckpoint

CODES = "codes"  # folder in the unfinished bundle


def choose_codes_stage(work: Compilation) -> None:
    """Choose the codes of all 4-bit matrices, unless they are rounded to nearest when they are written."""
    arguments, network = work.arguments, work.network
    if arguments.quality is QualityLevel.FAST:
        return
    if method_of(arguments).choice is None:
        return
    estimate, forms = estimate_of(arguments, network), forms_of(arguments)
    plan = plan_of(arguments, network, estimate.tokens)
    work.progress.note(f"quality {arguments.quality}: {estimate_text(with_learning(estimate, plan))}")
    for reason in plan.skipped:
        work.progress.note(reason)
    begin = time.monotonic()
    texts = calibration_tokens(work, estimate.tokens)
    folder = work.folder / CODES
    folder.mkdir()
    codes, kept = CodesFolder(folder), kept_matrices(arguments, work.checkpoint, network)
    _scale_channels(work, forms.layers, texts, kept)
    steps = steps_of(network, forms) + plan.layer_steps * network.spec.layers
    work.progress.stage(f"quality ({arguments.quality})", steps, "steps" if plan.layers else "matrices")
    learner = learner_of(network, forms, plan, work.progress)
    chooser = Chooser(work.checkpoint, network, forms, codes, work.progress.advance, learner, kept)
    chooser.run(texts)
    work.checkpoint = ChosenCheckpoint(work.checkpoint, codes)
    work.quality = QualitySpec(
        level=str(arguments.quality),
        methods=(*methods_of(arguments, forms.layers, work.is_rotated), *plan.methods),
        tokens=sum(map(len, texts)),
        seconds=round(time.monotonic() - begin, 1),
        peak_bytes=peak_memory()[0],
        errors={kind: _shares(error) for kind, error in chooser.errors.items()},
        learned=learning_errors(learner),
    )


def drop_codes_stage(work: Compilation) -> None:
    """Everything is written by now."""
    if isinstance(work.checkpoint, ChosenCheckpoint):
        work.checkpoint = work.checkpoint.inner
        shutil.rmtree(work.folder / CODES)


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
    layers, head = (CodeForm.of(method, arguments) for method in (method_of(arguments), head_method(arguments)))
    if layers is None:
        raise ValueError(f"{arguments.quant} has no codes to choose")
    return Forms(layers, None if arguments.task is ModelTask.EMBED else head)


def calibration_tokens(work: Compilation, most: int) -> list[list[int]]:
    """Token sequences for choosing codes, of `most` tokens together if there is as much text."""
    arguments, network = work.arguments, work.network
    assert work.text is not None
    length = min(TEXT_TOKENS, network.compiled_context)
    documents = calibration_documents(arguments.source, arguments.calibration, work.folder, work.text)
    return token_sequences(documents, work.folder, work.text, network.spec.vocab, length, most // length)


def _shares(error: OutputError) -> RoundingError:
    outputs = error.outputs or 1.0  # outputs that are all 0 have no error
    return RoundingError(float(f"{error.nearest / outputs:.3e}"), float(f"{error.chosen / outputs:.3e}"))
