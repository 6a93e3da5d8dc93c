"""What llama.cpp's Q4_0 would lose of the same floats on the same text: what a bundle must not exceed silently."""

import numpy as np

from engine.bundle.specs import ModelTask, QualitySpec
from engine.compile.arguments import QualityLevel
from engine.compile.calibration.forward import reference_logits
from engine.compile.calibration.statistics import mean_divergence
from engine.compile.compilation import Compilation
from engine.compile.quantisation.choose.llama_cpp import q4_0_of
from engine.compile.sources.checkpoint import Float32, RoundedCheckpoint

HARMLESS = 0.01  # nats: nobody needs a warning of less
Q4_0 = "q4_0_kl"


def baseline_figures(
    work: Compilation, texts: list[list[int]], expected: Float32, rows: list[int] | None = None
) -> dict[str, float]:
    """Q4_0's mean KL [nats] beside that in `work.parity`; nothing where the bundle loses next to nothing.

    expected: the floats' logits of texts, or of these rows of them.
    """
    has_experts = work.network.details.experts is not None  # theirs is not measured
    if has_experts or work.arguments.task is ModelTask.EMBED or work.parity.get("kl", 0.0) <= HARMLESS:
        return {}
    network = work.original_network
    rounded = RoundedCheckpoint(work.original, q4_0_of(network))
    with np.errstate(all="ignore"):  # what overflows is refused when the logits are compared
        found = np.concatenate([reference_logits(rounded, network, np.array(tokens)) for tokens in texts])
    return {Q4_0: round(mean_divergence(expected, found if rows is None else found[rows]), 9)}


def baseline_warning(parity: dict[str, float], quality: QualitySpec | None) -> str:
    """In plain words, '' where Q4_0 would lose as much or more, or was not measured."""
    kl, baseline = parity.get("kl", 0.0), parity.get(Q4_0)
    if baseline is None or kl <= baseline:
        return ""
    is_chosen = quality is not None and quality.level != QualityLevel.FAST
    advice = "8 bits lose less, and so may text like yours (--calibration)" if is_chosen else "try --quality good"
    return (
        f"warning: this bundle loses more than llama.cpp's Q4_0 of the same weights would: KL {kl:.3f} against "
        f"{baseline:.3f} on the same text; {advice}"
    )
