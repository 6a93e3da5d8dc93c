"""One text at a time through a runtime that serves nobody: for whoever wants the logits of its tokens.
A bundle reads its own sample at load. What is wrong on an NPU is mostly silent: a cache, a mask or a scale that does
not fit gives fluent noise. Two graphs of one bundle compute the same with other shapes, a prompt that its exporter
wrote is easy for the model, and the compiler wrote down what each token of the sample cost when it ran the graphs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.variant import ShapeTable, StepShape, shape_table
from engine.config import BLOCK_SIZE
from engine.core.kv_blocks import Sight
from engine.runtime.interface import RowLayout, Runtime

READER = "reader"  # owns the states of the text
STEP_ROWS = 64


def reading_shapes(manifest: Manifest, rows: int = STEP_ROWS) -> ShapeTable:
    """What whole texts are read in. rows: of a step of free shapes, or those that the model cannot do with fewer of.
    All tokens of a text that graphs without a past read are in one step."""
    if manifest.reads_whole_context:
        return shape_table(manifest, manifest.max_context)
    image = manifest.vision.tokens if manifest.vision is not None and manifest.vision.both_ways else 0
    block = manifest.diffusion.block_length if manifest.diffusion is not None else 0
    return shape_table(manifest, max(rows, image, block))


def read_rows(
    runtime: Runtime, shape: StepShape, tokens: Sequence[int], first: int, wanted: Iterable[int], is_kept: bool
) -> NDArray[np.float32]:
    """Logits of the wanted rows of the tokens from position `first` on, behind those that were kept before."""
    # A block of fused graphs is a whole cache, and a pool need not be whole blocks.
    size = BLOCK_SIZE if runtime.shapes.segmented and not runtime.shapes.slots else max(1, shape.past)
    layout = RowLayout(shape, len(tokens))
    row = layout.add(tokens, first, tuple(range(-(-first // size))), first, logits=wanted, owner=READER)
    logits = runtime.run(layout.batch(size)).decoded().copy()
    if is_kept:
        runtime.keep(np.arange(row, row + len(tokens)), np.arange(first, first + len(tokens)))
        if runtime.window:
            runtime.blocks.free_behind(range(Sight(runtime.window, BLOCK_SIZE, 0).first_seen(first + len(tokens))))
    return logits


def forget_text(runtime: Runtime, tokens: int) -> None:
    runtime.forget_states([READER], [])
    if runtime.window:
        runtime.blocks.free(range(-(-tokens // BLOCK_SIZE)))


def text_logits(runtime: Runtime, tokens: Sequence[int], most: int = 0, first: int = 0) -> NDArray[np.float32]:
    """Logits of the tokens from `first` on [tokens, vocabulary], in steps of the most rows that give those of all.
    Not more tokens than a step has columns, and one: nothing reads what the last step computes for others. most: tokens
    of a step, 0 = as many as it takes."""
    shapes = runtime.shapes
    if shapes.free:
        shape = StepShape(min(shapes.max_rows, most or shapes.max_rows), shapes.round_past(len(tokens)))
    else:
        shape = min(shapes.fixed) if shapes.slots else max(shapes.fixed)
    found, count = np.empty((0, 0), np.float32), min(shape.rows, most or shape.rows)
    for start in range(0, len(tokens), count):
        part = tokens[start : start + count]
        rows = range(min(max(0, first - start), len(part) - 1), len(part))  # one at least: it tells the vocabulary
        logits = read_rows(runtime, shape, part, start, rows, start + count < len(tokens))
        if not start:
            found = np.empty((len(tokens) - first, logits.shape[1]), np.float32)
        if (end := start + len(part) - first) > 0:
            found[end - len(rows) : end] = logits
    forget_text(runtime, len(tokens))
    return found


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
        found, behind = (self.loss, "") if self.drift is None else (self.drift, " from what its compiler saw")
        return f"{found:.2f} nats a token{behind}"

    def warnings(self) -> list[str]:
        found = []
        if self.drift is not None and not self.drift <= MOST_DRIFT:
            costs = f"a token of its sample costs {self.drift:.2f} nats more or less, {MOST_DRIFT} is the most"
            found.append(f"its graphs do not compute what they did for the compiler: {costs}")
        if self.drift is None and not self.loss < log(self.vocabulary):
            nats = f"{self.loss:.1f} nats a token, chance has {log(self.vocabulary):.1f}"
            found.append(f"it predicts its own sample prompt no better than chance ({nats})")
        if self.correlation is not None and not self.correlation >= LEAST_CORRELATION:
            alike = f"correlate by {self.correlation:.2f}, {LEAST_CORRELATION} is the least"
            found.append(f"its graphs disagree about its own sample prompt: logits of many rows and of one {alike}")
        return found


def self_check(manifest: Manifest, runtime: Runtime) -> SelfCheck | None:
    """Read the sample prompt at once and token by token; None where there is none, or no way to do so.
    Uses the first columns of the pool before anybody else does. Raises StepFailed."""
    sample = manifest.sample
    if sample is None or manifest.forecast is not None or manifest.reads_whole_context:
        return None
    shapes = _shapes(runtime) if len(sample.ids) >= LEAST_TOKENS else None
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
    forget_text(runtime, len(ids))
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
        wide, reaching = StepShape(shapes.max_rows, shapes.max_past), [StepShape(1, shapes.max_past)]
    else:
        wide = max(shapes.fixed, key=lambda shape: (shape.rows, -shape.past))
        reaching = [shape for shape in shapes.fixed if shape.past >= wide.rows]
    return (wide, min(reaching)) if reaching and wide.rows >= LEAST_TOKENS else None
