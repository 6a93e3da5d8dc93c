"""The stage that evens out the heads, for 8-bit caches and 4-bit weights alike, before codes are chosen."""

import time

from engine.bundle.quality_spec import QualitySpec
from engine.compile.arguments import QualityLevel
from engine.compile.calibrated.estimate import HEAD_TOKENS
from engine.compile.calibrated.settle import methods_of
from engine.compile.compilation import Compilation
from engine.compile.memory import peak_memory
from engine.compile.quantization.table import method_of
from engine.compile.texts.documents import calibration_documents
from engine.compile.texts.sequences import token_sequences
from engine.compile.transforms.balanced_heads import balancing_edits
from engine.compile.transforms.checkpoint import TransformedCheckpoint
from engine.compile.transforms.head_statistics import head_statistics

TEXT_TOKENS = 256


def balance_stage(work: Compilation) -> None:
    """Fold factors into keys, values and what reads them; not with --quality fast, nor where adapters are to fit."""
    if work.arguments.quality is QualityLevel.FAST or work.arguments.lora:
        return
    begin, texts = time.monotonic(), _texts(work)
    work.progress.stage("heads", work.network.spec.layers, "layers")
    checkpoint, network = work.checkpoint, work.network
    # Values are measured before they are rotated: afterwards no channel's own factor can be folded in.
    measured = checkpoint.inner if isinstance(checkpoint, TransformedCheckpoint) else checkpoint
    edits = balancing_edits(network, head_statistics(measured, network, texts, work.progress.advance))
    if isinstance(checkpoint, TransformedCheckpoint):
        work.checkpoint = checkpoint.scaled(edits)
    else:
        work.checkpoint = TransformedCheckpoint(checkpoint, edits, network.details.norm_offset)
    if method_of(work.arguments).choice is None:  # else the codes are chosen next
        work.quality = QualitySpec(
            level=str(work.arguments.quality),
            methods=methods_of(work.arguments, None),
            tokens=sum(map(len, texts)),
            seconds=round(time.monotonic() - begin, 1),
            peak_bytes=peak_memory()[0],
        )


def _texts(work: Compilation) -> list[list[int]]:
    arguments, network = work.arguments, work.network
    assert work.text is not None
    documents = calibration_documents(arguments.source, arguments.calibration, work.folder, work.text)
    length = min(TEXT_TOKENS, network.compiled_context)
    return token_sequences(documents, work.folder, work.text, network.spec.vocab, length, HEAD_TOKENS // length)
