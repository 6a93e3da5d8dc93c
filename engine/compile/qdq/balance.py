"""The stage that evens out the heads of 8-bit caches before weights are chosen and stored."""

from engine.compile.arguments import QualityLevel
from engine.compile.compilation import Compilation
from engine.compile.qdq.texts import calibration_documents, token_sequences
from engine.compile.transforms.balanced_heads import balancing_edits
from engine.compile.transforms.checkpoint import TransformedCheckpoint
from engine.compile.transforms.head_statistics import head_statistics

TEXT_TOKENS, TEXTS = 256, 8


def balance_stage(work: Compilation) -> None:
    """Fold factors into keys, values and what reads them; only where more than --quality fast is asked for."""
    if work.arguments.quality is QualityLevel.FAST:
        return
    arguments, network = work.arguments, work.network
    assert work.text is not None
    documents = calibration_documents(arguments.source, arguments.calibration, work.folder, work.text)
    length = min(TEXT_TOKENS, network.compiled_context)
    texts = token_sequences(documents, work.folder, work.text, network.spec.vocab, length, TEXTS)
    work.progress.stage("heads", network.spec.layers, "layers")
    checkpoint = work.checkpoint
    if isinstance(checkpoint, TransformedCheckpoint):
        # Values are measured before they are rotated: afterwards no channel's own factor can be folded in.
        statistics = head_statistics(checkpoint.inner, network, texts, work.progress.advance)
        work.checkpoint = checkpoint.scaled(balancing_edits(network, statistics))
        return
    statistics = head_statistics(checkpoint, network, texts, work.progress.advance)
    edits = balancing_edits(network, statistics)
    work.checkpoint = TransformedCheckpoint(checkpoint, edits, network.details.norm_offset)
