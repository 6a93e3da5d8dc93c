"""Integer bundles of a tiny random checkpoint, compiled once per session."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import Manifest
from engine.bundle.variant import ShapeTable, StepShape
from engine.compile.arguments import CompileArguments, Quant, Split
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.core.plan import Segment, StepPlan
from engine.runtime.interface import pack
from engine.runtime.pooled import OnnxRuntime
from engine.runtime.sessions import Provider, cpu_provider
from tests.engine.worker.simulation import sequence_of

Make = Callable[..., tuple[Path, Manifest]]


@pytest.fixture(scope="session")
def integer_bundle(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """integer_bundle(quant, split) -> (folder, manifest), made at the first call."""
    made: dict[tuple[Quant, Split], tuple[Path, Manifest]] = {}
    folder = tmp_path_factory.mktemp("integer")

    def make(quant: Quant = Quant.W8A16, split: Split = Split.LMHEAD) -> tuple[Path, Manifest]:
        if (quant, split) not in made:
            output = folder / f"{quant}-{split}"
            arguments = CompileArguments(
                tiny_checkpoint, output, quant=quant, split=split, rows=(1, 8, 32), context=(64, 128), parity_tokens=24
            )
            made[quant, split] = (output, compile_bundle(arguments, SilentProgress()))
        return made[quant, split]

    return make


@dataclass(frozen=True)
class Bench:
    """Runs steps of one shape on a runtime. Pages have 16 columns."""

    runtime: OnnxRuntime
    shape: StepShape

    def run(self, *segments: Segment) -> np.ndarray:
        """One step whose KV is kept; logits of each segment's last row."""
        plan = StepPlan(self.shape, segments)
        batch = pack(plan, 16)
        logits = self.runtime.run(batch).decoded().copy()
        rows = [np.arange(start, start + len(part.tokens)) for start, part in zip(batch.starts, segments, strict=True)]
        columns = np.concatenate([np.array(part.targets) for part in segments])
        self.runtime.keep(np.concatenate(rows).astype(np.int64), columns.astype(np.int64))
        return logits

    def pool(self) -> tuple[np.ndarray, np.ndarray]:
        """The cached keys and values, all layers, once all of them are written."""
        self.runtime._writes.finish()
        return self.runtime._pool.columns.keys, self.runtime._pool.columns.values


def open_bench(folder: Path, manifest: Manifest, shape: StepShape, provider: Provider | None = None) -> Bench:
    """A runtime pinned to one shape; on the CPU unless told otherwise."""
    table = ShapeTable((shape,), shape.rows, shape.past)
    return Bench(OnnxRuntime(folder, manifest, table, provider or cpu_provider(1)), shape)


def segment(name: str, tokens: tuple[int, ...], position: int, pages: tuple[int, ...]) -> Segment:
    """Tokens at positions from `position` on, cached in `pages` in their order."""
    columns = tuple(pages[index // 16] * 16 + index % 16 for index in range(position, position + len(tokens)))
    return Segment(sequence_of(name), tokens, position, pages[: -(-position // 16)], position, columns, 1)
