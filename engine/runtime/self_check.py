"""A foreign bundle read its own sample prompt: do its graphs agree with each other, and do they make sense of it?

What is wrong on an NPU is mostly silent: a cache, a mask or a scale that does not fit gives fluent noise. Two graphs of
one bundle compute the same with other shapes, and a prompt that its exporter wrote is easy for the model.
"""

from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.variant import StepShape
from engine.runtime.interface import RowLayout, Runtime

OWNER = "self-check"
LEAST_TOKENS = 4
# Codes of 16 bits and caches of 8 leave graphs of one network this alike at least; a wrong cache does not.
LEAST_CORRELATION = 0.9


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """loss: nats a token of the sample prompt, mean. correlation: of the logits behind it, read at once and one token
    after the other; None where there is one shape only."""

    loss: float
    correlation: float | None
    vocabulary: int

    def warnings(self) -> list[str]:
        """Sentences; none where all is well."""
        found = []
        if not self.loss < log(self.vocabulary):
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

    Uses the first columns of pool 0 before anybody else does. Raises StepFailed.
    """
    if len(manifest.sample_ids) < LEAST_TOKENS or manifest.forecast is not None or manifest.reads_whole_context:
        return None
    shapes = _shapes(runtime)
    if shapes is None:
        return None
    wide, narrow = shapes
    ids = manifest.sample_ids[: wide.rows]
    logits = _read(runtime, wide, ids, 0, range(len(ids)))
    losses = [-_log_softmax(row)[token] for row, token in zip(logits, ids[1:], strict=False)]
    correlation = None
    if narrow.rows < wide.rows or runtime.shapes.free:
        last = logits[-1]
        for index, token in enumerate(ids):
            last = _read(runtime, narrow, (token,), index, range(1))[0]
        correlation = float(np.corrcoef(logits[-1], last)[0, 1])
    runtime.forget_states([OWNER], [])
    return SelfCheck(float(np.mean(losses)), correlation, manifest.model.vocab)


def _shapes(runtime: Runtime) -> tuple[StepShape, StepShape] | None:
    """(of many rows, of the fewest)."""
    shapes = runtime.shapes
    if shapes.free:
        wide = StepShape(shapes.max_rows, shapes.max_past)
        return (wide, StepShape(1, shapes.max_past)) if wide.rows >= LEAST_TOKENS else None
    wide = max(shapes.fixed, key=lambda shape: (shape.rows, -shape.past))
    reaching = [shape for shape in shapes.fixed if shape.past >= wide.rows]
    return (wide, min(reaching)) if reaching and wide.rows >= LEAST_TOKENS else None


def _read(runtime: Runtime, shape: StepShape, ids: tuple[int, ...], first: int, wanted: range) -> NDArray[np.float32]:
    """Logits of the wanted rows; with one token its keys and values are kept."""
    layout = RowLayout(shape, len(ids))
    row = layout.add(ids, first, (0,), first, logits=wanted, owner=OWNER)
    logits = runtime.run(layout.batch(max(1, shape.past))).decoded().copy()
    if len(ids) == 1:
        runtime.keep(0, np.array([row]), np.array([first]))
    return logits


def _log_softmax(row: NDArray[np.float32]) -> NDArray[np.float32]:
    shifted = row - row.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float32)
