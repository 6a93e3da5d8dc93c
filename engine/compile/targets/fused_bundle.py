"""The check of fused bundles: runs of every kind of pass against the float reference."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.variant import StepShape, shape_table
from engine.compile.check.parity import compare_logits, open_session
from engine.compile.check.parity_text import parity_texts
from engine.compile.compilation import Compilation
from engine.compile.targets.measure import EMULATED_PASSES, Measured, float_logits, keep_parity
from engine.runtime.fused import FusedRuntime
from engine.runtime.interface import PackedBatch, RowLayout
from engine.runtime.sessions import Provider

Float32 = NDArray[np.float32]


def measure_fused(work: Compilation, graphs: Measured) -> None:
    """Runs of every kind of pass; of a prompt's chunk only the last row is compared."""
    spec, count = graphs.manifest.fused, work.arguments.parity_tokens
    assert spec is not None
    count = min(count, EMULATED_PASSES) if graphs.is_emulated else count
    texts = parity_texts(work.arguments.source, work.folder, work.network.spec.vocab, count, spec.columns)
    work.progress.stage("parity", 2 * sum(map(len, texts)), "tokens")
    expected = float_logits(work, texts)
    provider = Provider("parity", partial(open_session, opener=graphs.opener))
    runtime = FusedRuntime(
        graphs.folder, graphs.manifest, shape_table(graphs.manifest, max(spec.pd_total_len)), provider
    )
    try:
        places, found = zip(*_read(runtime, graphs.manifest, texts), strict=True)
    finally:
        runtime.close()
    starts = np.cumsum([0, *map(len, texts)])
    rows = [int(starts[text]) + position for text, position in places]
    work.progress.advance(sum(map(len, texts)))
    keep_parity(work, compare_logits(expected[rows], np.stack(found)), texts, expected[rows], rows)


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
    columns = batch.block_size
    for (text, count), segment, row in zip(pairs, batch.segments, logits, strict=True):
        at = text * columns + computed[text] + np.arange(count)
        runtime.keep(np.arange(segment.start, segment.end), at)
        computed[text] += count
        yield (text, computed[text] - 1), row.copy()


def _batch(
    shape: StepShape, texts: Sequence[Sequence[int]], computed: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> PackedBatch:
    layout = RowLayout(shape, sum(count for _, count in pairs))
    for text, count in pairs:
        past = computed[text]
        layout.add(texts[text][past : past + count], past, (text,) if past else (), past, logits=(count - 1,))
    return layout.batch(block_size=shape.past - 1)
