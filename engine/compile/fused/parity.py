"""Runs a finished bundle of fused graphs on text and compares it with the float reference.

Passes of every kind: a prompt alone, a prompt beside the rest of the text before it, a decode alone.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.variant import PassShape, shape_table
from engine.compile.baseline import baseline_figures
from engine.compile.compilation import Compilation
from engine.compile.parity import Opener, Parity, compare_logits, open_session
from engine.compile.parity_text import parity_texts
from engine.compile.stages import float_logits, parity_figures
from engine.graphs.batch import PackedBatch, PackedSegment
from engine.graphs.fused.runtime import FusedRuntime
from engine.graphs.onnx_sessions import Provider

Float32 = NDArray[np.float32]


def fused_parity(work: Compilation, folder: Path, manifest: Manifest, count: int, opener: Opener | None) -> Parity:
    """About `count` tokens of text; of a prompt's chunk only the last row is compared. opener None = on the CPU.

    Fills in `work.parity`.
    """
    spec = manifest.fused
    assert spec is not None
    texts = parity_texts(work.arguments.source, work.folder, work.network.spec.vocab, count, spec.columns)
    work.progress.stage("parity", 2 * sum(map(len, texts)), "tokens")
    expected = float_logits(work, texts)
    provider = Provider("parity", lambda path: open_session(path, opener))
    runtime = FusedRuntime(folder, manifest, shape_table(manifest, max(spec.pd_total_len)), provider)
    try:
        places, found = zip(*_read(runtime, manifest, texts), strict=True)
    finally:
        runtime.close()
    starts = np.cumsum([0, *map(len, texts)])
    rows = [int(starts[text]) + position for text, position in places]
    work.progress.advance(sum(map(len, texts)))
    parity = compare_logits(expected[rows], np.stack(found))
    work.parity = parity_figures(work, parity)
    work.parity |= baseline_figures(work, texts, expected[rows], rows)
    return parity


def decoded_logits(runtime: FusedRuntime, manifest: Manifest, tokens: Sequence[int]) -> Float32:
    """Logits [tokens, V] of one text: the first token as a prompt, every other one as a decode."""
    spec = manifest.fused
    assert spec is not None
    computed, found = [0], []
    for position in range(len(tokens)):
        rows = 1 if position else spec.pd_total_len[-1]
        found += [logits for _, logits in _pass(runtime, [tokens], computed, [(0, 1)], rows)]
    return np.stack(found)


def _read(
    runtime: FusedRuntime, manifest: Manifest, texts: Sequence[Sequence[int]]
) -> Iterator[tuple[tuple[int, int], Float32]]:
    """((text, position), logits [V]) of every row that gives logits: the first half of a text as a prompt."""
    spec = manifest.fused
    assert spec is not None
    computed = [0] * len(texts)
    decoding: int | None = None
    for text, tokens in enumerate(texts):
        half = max(1, len(tokens) // 2)
        while computed[text] < half:
            chunk = min(half - computed[text], spec.pd_prefill_len[-1])
            pairs = [(text, chunk)]
            if decoding is not None and computed[decoding] < len(texts[decoding]):
                pairs.append((decoding, 1))
            yield from _pass(runtime, texts, computed, pairs, spec.pd_total_len[-1])
        while decoding is not None and computed[decoding] < len(texts[decoding]):
            yield from _pass(runtime, texts, computed, [(decoding, 1)], 1)
        decoding = text
    while decoding is not None and computed[decoding] < len(texts[decoding]):
        yield from _pass(runtime, texts, computed, [(decoding, 1)], 1)


def _pass(
    runtime: FusedRuntime,
    texts: Sequence[Sequence[int]],
    computed: list[int],
    pairs: Sequence[tuple[int, int]],
    rows: int,
) -> Iterator[tuple[tuple[int, int], Float32]]:
    """Run the next rows of some texts, each in the cache of its number, and keep them."""
    shape = next(shape for shape in runtime.shapes.fixed if shape.rows == rows)
    batch = _batch(shape, texts, computed, pairs)
    logits = runtime.run(batch).decoded()
    columns = batch.page_columns
    for (text, count), segment, row in zip(pairs, batch.segments, logits, strict=True):
        at = text * columns + computed[text] + np.arange(count)
        runtime.keep(0, np.arange(segment.start, segment.end), at)
        computed[text] += count
        yield (text, computed[text] - 1), row.copy()


def _batch(
    shape: PassShape, texts: Sequence[Sequence[int]], computed: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> PackedBatch:
    ids, positions = np.zeros(shape.rows, np.int32), np.zeros(shape.rows, np.int32)
    row = shape.rows - sum(count for _, count in pairs)
    segments: list[PackedSegment] = []
    for text, count in pairs:
        past = computed[text]
        ids[row : row + count] = texts[text][past : past + count]
        positions[row : row + count] = past + np.arange(count)
        segments.append(PackedSegment(row, count, (text,) if past else (), past, past + count))
        row += count
    last = np.array([segment.end - 1 for segment in segments])
    return PackedBatch(shape, 0, ids, positions, last, tuple(segments), page_columns=shape.past - 1)
