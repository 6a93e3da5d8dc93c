"""The compiler's stages around weights that are chosen: choose codes before they are written, drop them afterwards."""

import shutil

from engine.bundle.task import ModelTask
from engine.compile.arguments import QualityLevel
from engine.compile.calibrated.checkpoint import ChosenCheckpoint
from engine.compile.calibrated.choose import Chooser, Forms, steps_of
from engine.compile.calibrated.codes_file import CodesFolder
from engine.compile.calibrated.form import CodeForm
from engine.compile.compilation import Compilation
from engine.compile.qdq.texts import calibration_documents, token_sequences
from engine.compile.quantization.table import head_method, method_of

CODES = "codes"  # folder in the unfinished bundle
TOKENS, TEXT_TOKENS = 16_384, 512


def choose_codes_stage(work: Compilation) -> None:
    """Choose the codes of all 4-bit matrices, unless they are rounded to nearest when they are written."""
    arguments, network = work.arguments, work.network
    if arguments.quality is QualityLevel.FAST:
        return
    layers, head = (CodeForm.of(method, arguments) for method in (method_of(arguments), head_method(arguments)))
    assert layers is not None
    forms = Forms(layers, None if arguments.task is ModelTask.EMBED else head)
    texts = calibration_tokens(work)
    folder = work.folder / CODES
    folder.mkdir()
    codes = CodesFolder(folder)
    work.progress.stage(f"quality ({arguments.quality})", steps_of(network, forms), "matrices")
    Chooser(work.checkpoint, network, forms, codes, work.progress.advance).run(texts)
    work.checkpoint = ChosenCheckpoint(work.checkpoint, codes)


def drop_codes_stage(work: Compilation) -> None:
    """Everything is written by now."""
    if isinstance(work.checkpoint, ChosenCheckpoint):
        work.checkpoint = work.checkpoint.inner
        shutil.rmtree(work.folder / CODES)


def calibration_tokens(work: Compilation) -> list[list[int]]:
    """Token sequences for choosing codes."""
    arguments, network = work.arguments, work.network
    assert work.text is not None
    length = min(TEXT_TOKENS, network.compiled_context)
    documents = calibration_documents(arguments.source, arguments.calibration, work.folder, work.text)
    return token_sequences(documents, work.folder, work.text, network.spec.vocab, length, TOKENS // length)
