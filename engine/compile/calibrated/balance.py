"""The stage that changes floats for what rounds them, before codes are chosen: even heads, a turned stream."""

import time
from dataclasses import replace

import msgspec

from engine.bundle.quality_spec import QualitySpec
from engine.bundle.task import ModelTask
from engine.compile.calibrated.estimate import HEAD_TOKENS
from engine.compile.calibrated.matrices import kept_matrices
from engine.compile.calibrated.settle import balances, methods_of
from engine.compile.compilation import Compilation
from engine.compile.memory import peak_memory
from engine.compile.quantization.method import Activations
from engine.compile.quantization.table import method_of
from engine.compile.texts.documents import calibration_documents
from engine.compile.texts.sequences import token_sequences
from engine.compile.transforms.balanced_heads import balancing_edits
from engine.compile.transforms.checkpoint import TransformedCheckpoint
from engine.compile.transforms.head_statistics import StreamStatistics, head_statistics
from engine.compile.transforms.network_rotation import rotation_edits

TEXT_TOKENS = 256
SEED = 0  # of the rotation
# A stream whose largest number is so many times as large as its own token, and as the middle one: 16 bits that reach it
# leave the middle token less than ten.
OUTLIER, QUIET = 6.0, 64.0


def balance_stage(work: Compilation) -> None:
    """Fold factors into keys, values and what reads them; of integer graphs with outliers turn the stream as well.

    Not with --quality fast, where adapters are to fit, where caches are half precision, or codes of a file are kept.
    """
    if not balances(work.arguments) or kept_matrices(work.arguments, work.checkpoint, work.network):
        return
    begin, texts = time.monotonic(), _texts(work)
    work.progress.stage("heads", work.network.spec.layers, "layers")
    # Values are measured before they are turned: afterwards no channel's own factor could be folded in.
    inner = work.checkpoint.inner if isinstance(work.checkpoint, TransformedCheckpoint) else work.checkpoint
    heads, stream = head_statistics(inner, work.network, texts, work.progress.advance)
    edits = balancing_edits(work.network, heads)
    if isinstance(work.checkpoint, TransformedCheckpoint):
        work.checkpoint = work.checkpoint.scaled(edits)
    else:
        work.checkpoint = TransformedCheckpoint(work.checkpoint, edits, work.network.details.norm_offset)
    if _wants_rotation(work, stream):
        _rotate(work)
    if method_of(work.arguments).choice is None:  # else the codes are chosen next
        work.quality = QualitySpec(
            level=str(work.arguments.quality),
            methods=methods_of(work.arguments, None, work.is_rotated),
            tokens=sum(map(len, texts)),
            seconds=round(time.monotonic() - begin, 1),
            peak_bytes=peak_memory()[0],
        )


def _wants_rotation(work: Compilation, stream: StreamStatistics) -> bool:
    """Vectors leave at the final norm and would be turned; floats have no range to share."""
    if method_of(work.arguments).activations is not Activations.INTEGER or work.arguments.task is ModelTask.EMBED:
        return False
    return stream.largest > OUTLIER * stream.beside and stream.largest > QUIET * stream.quiet


def _rotate(work: Compilation) -> None:
    """Every number of a token then is about as large as its root mean square. A tied head gets weights of its own."""
    edits, offset = rotation_edits(work.network, SEED), work.network.details.norm_offset
    work.checkpoint, work.is_rotated = TransformedCheckpoint(work.checkpoint, edits, offset), True
    work.network = replace(work.network, spec=msgspec.structs.replace(work.network.spec, tied_head=False))
    work.progress.note("the stream has outliers: it is rotated, and the head has weights of its own")


def _texts(work: Compilation) -> list[list[int]]:
    arguments, network = work.arguments, work.network
    assert work.text is not None
    documents = calibration_documents(arguments.source, arguments.calibration, work.folder, work.text)
    length = min(TEXT_TOKENS, network.compiled_context)
    return token_sequences(documents, work.folder, work.text, network.spec.vocab, length, HEAD_TOKENS // length)
