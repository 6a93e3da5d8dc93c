"""A bundle reads its own sample at load: do its graphs agree with each other and their compiler, and make sense of it?

What is wrong on an NPU is mostly silent: a cache, a mask or a scale that does not fit gives fluent noise. Two graphs of
one bundle compute the same with other shapes, a prompt that its exporter wrote is easy for the model, and the compiler
wrote down what each token of the sample cost when it ran the graphs on a CPU or in the emulator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.variant import StepShape
from engine.runtime.interface import Runtime
from engine.runtime.reading import READER, read_rows

LEAST_TOKENS = 4
# Codes of 16 bits and caches of 8 leave graphs of one network this alike at least; a wrong cache does not.
LEAST_CORRELATION = 0.9
MOST_DRIFT = 0.2  # nats a token; from CPU to emulator it is 0.00 to 0.03 (the embedded model, fp16 to w4a16)


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """loss: nats a token of the sample prompt, mean. correlation: of the logits behind it, read at once and one token
    after the other; None where there is one shape only. drift: how far the loss of a token is from what the
    compiler saw, mean; None where it wrote nothing down."""

    loss: float
    correlation: float | None
    vocabulary: int
    drift: float | None = None

    def __str__(self) -> str:
        if self.drift is not None:
            return f"{self.drift:.2f} nats a token from what its compiler saw"
        return f"{self.loss:.2f} nats a token"

    def warnings(self) -> list[str]:
        """Sentences; none where all is well."""
        found = []
        if self.drift is not None and not self.drift <= MOST_DRIFT:
            found.append(
                f"its graphs do not compute what they did for the compiler: a token of its sample costs "
                f"{self.drift:.2f} nats more or less, {MOST_DRIFT} is the most"
            )
        if self.drift is None and not self.loss < log(self.vocabulary):
            found.append(
                f"it predicts its own sample prompt no better than chance ({self.loss:.1f} nats a token, chance has "
                f"{log(self.vocabulary):.1f})"
            )
        if self.correlation is not None and not self.correlation >= LEAST_CORRELATION:
            found.append(
                f"its graphs disagree about its own sample prompt: logits of many rows and of one correlate by "
                f"{self.correlation:.2f}, {LEAST_CORRELATION} is the least"
            )
        return found


def self_check(manifest: Manifest, runtime: Runtime) -> SelfCheck | None:
    """Read the sample prompt at once and token by token; None where there is none, or no way to do so.

    Uses the first columns of the pool before anybody else does. Raises StepFailed.
    """
    sample = manifest.sample
    if (
        sample is None
        or len(sample.ids) < LEAST_TOKENS
        or manifest.forecast is not None
        or manifest.reads_whole_context
    ):
        return None
    shapes = _shapes(runtime)
    if shapes is None:
        return None
    wide, narrow = shapes
    ids = sample.ids[: wide.rows]
    logits = read_rows(runtime, wide, ids, 0, range(len(ids)), is_kept=False)
    losses = token_losses(logits, ids)
    correlation = None
    if narrow.rows < wide.rows or runtime.shapes.free:
        last = logits[-1]
        for index, token in enumerate(ids):
            last = read_rows(runtime, narrow, (token,), index, range(1), is_kept=True)[0]
        correlation = float(np.corrcoef(logits[-1], last)[0, 1])
    runtime.forget_states([READER], [])
    drift = float(np.abs(losses - sample.losses[: len(losses)]).mean()) if sample.losses else None
    return SelfCheck(float(losses.mean()), correlation, manifest.model.vocab, drift)


def token_losses(logits: NDArray[np.float32], ids: Sequence[int]) -> NDArray[np.float64]:
    """Nats of each token but the first, by the row before it. logits [tokens, vocabulary]."""
    rows = logits[: len(ids) - 1].astype(np.float64)
    highest = rows.max(axis=1, keepdims=True)
    totals = np.log(np.exp(rows - highest).sum(axis=1)) + highest[:, 0]
    return np.asarray(totals - rows[np.arange(len(rows)), list(ids[1:])])


def _shapes(runtime: Runtime) -> tuple[StepShape, StepShape] | None:
    """(of many rows, of the fewest)."""
    shapes = runtime.shapes
    if shapes.free:
        wide = StepShape(shapes.max_rows, shapes.max_past)
        return (wide, StepShape(1, shapes.max_past)) if wide.rows >= LEAST_TOKENS else None
    wide = max(shapes.fixed, key=lambda shape: (shape.rows, -shape.past))
    reaching = [shape for shape in shapes.fixed if shape.past >= wide.rows]
    return (wide, min(reaching)) if reaching and wide.rows >= LEAST_TOKENS else None
