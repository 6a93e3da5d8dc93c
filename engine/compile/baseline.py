"""What llama.cpp's Q4_0 would lose of the same floats on the same text: what a bundle must not exceed silently."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from engine.bundle.quality_spec import QualitySpec
from engine.bundle.task import ModelTask
from engine.compile.arguments import QualityLevel
from engine.compile.calibrated.matrices import groups_of
from engine.compile.checkpoint import Checkpoint, Float32
from engine.compile.checkpoint_view import CheckpointView
from engine.compile.compilation import Compilation
from engine.compile.parity import mean_divergence
from engine.compile.quantization.int4 import dequantised, int4_blocks
from engine.compile.reference import reference_logits
from engine.models.network import Network

BLOCK = 32
HARMLESS = 0.01  # nats: nobody needs a warning of less
Q4_0 = "q4_0_kl"


class Q4Checkpoint(CheckpointView):
    """As `inner`, with the matrices named rounded as llama.cpp's Q4_0 rounds: ggml-quants.c, quantize_row_q4_0_ref.

    The head and the embedding stay floats, as `llama-quantize` gives them more bits.
    """

    def __init__(self, inner: Checkpoint, matrices: Iterable[str]) -> None:
        super().__init__(inner)
        self._matrices = frozenset(matrices)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        """Rounded, if it is one of the matrices and blocks of 32 come out even."""
        values = self.inner.tensor(name, shape)
        return q4_0_floats(values) if name in self._matrices and shape[1] % BLOCK == 0 else values


def q4_0_floats(weight: Float32) -> Float32:
    """[outputs, inputs]: of 32 inputs the one of the largest magnitude becomes -8; scales are half precision."""
    blocks = int4_blocks(weight, BLOCK, asymmetric=False)
    halves = blocks.scales.astype(np.float16).astype(np.float32)
    return dequantised(replace(blocks, scales=halves), weight.shape[1])


def baseline_figures(
    work: Compilation, texts: list[list[int]], expected: Float32, rows: list[int] | None = None
) -> dict[str, float]:
    """Q4_0's mean KL [nats] beside that in `work.parity`; nothing where the bundle loses next to nothing.

    expected: the floats' logits of texts, or of these rows of them.
    """
    if work.arguments.task is ModelTask.EMBED or work.parity.get("kl", 0.0) <= HARMLESS:
        return {}
    network = work.original_network
    rounded = Q4Checkpoint(work.original, _matrices(network))
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


def _matrices(network: Network) -> Iterable[str]:
    groups = (group for layer in range(network.spec.layers) for group in groups_of(network, layer))
    return (name for group in groups for name in group.tensors)
