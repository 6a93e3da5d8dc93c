"""Workers of which one goes on with what another began."""

from pathlib import Path

import numpy as np

from engine.compile.check.parity import Float32
from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.runtime.interface import Logits, PackedBatch
from engine.worker.assembly import Assembled, assemble

PROMPT = tuple(3 + 7 * index % 250 for index in range(75))
TOKENS = 24
ASKED = Request("a", PROMPT, SamplingParams(TOKENS, temperature=0.0))


def opened(folder: Path) -> Assembled:
    return assemble(EngineConfig(str(folder)))


def tokens(worker: Assembled, count: int) -> list[int]:
    """What comes until there are so many, or no more."""
    found: list[int] = []
    while worker.loop.has_work and len(found) < count:
        for event in worker.loop.step().events:
            found += event.token_ids
    return found


def moved(first: Path, second: Path, after: int, tmp_path: Path) -> tuple[list[int], int]:
    """All tokens, and how many of them and the prompt the second worker took over."""
    giver, taker = opened(first), opened(second)
    try:
        giver.loop.add(ASKED, (), 0, 0.0)
        before = tokens(giver, after)
        assert giver.mover and taker.mover
        path = tmp_path / "caches"
        given = giver.mover.give("a", path)
        giver.loop.abort("a")
        assert taker.mover.take(path) == given and not path.exists()
        taker.loop.add(ASKED, tuple(before), 0, 0.0)
        after_move = tokens(taker, TOKENS)
        assert not list(giver.loop.violations()) and not list(taker.loop.violations())
        assert taker.loop.stats().prefix_queries == 0  # it was counted where it came from
        return before + after_move, len(PROMPT) + len(before) - taker.loop.stats().prefill_rows
    finally:
        for worker in (giver, taker):
            worker.loop.close()
            worker.runtime.close()


def alone(folder: Path) -> list[int]:
    worker = opened(folder)
    worker.loop.add(ASKED, (), 0, 0.0)
    found = tokens(worker, TOKENS)
    worker.loop.close()
    worker.runtime.close()
    return found


class Forced:
    """A worker that is told every token, and what it expects behind each."""

    def __init__(self, folder: Path) -> None:
        self.worker = assemble(EngineConfig(str(folder), lookup_rows=0))
        self._run = self.worker.runtime.run
        self.worker.runtime.run = self._noting  # type: ignore[method-assign]
        self._last = np.empty(0, np.float32)

    def _noting(self, batch: PackedBatch) -> Logits:
        logits = self._run(batch)
        if len(logits):
            self._last = logits.decoded()[-1].copy()
        return logits

    def give(self, prompt: tuple[int, ...], salt: bytes, path: Path) -> int:
        """Compute a prompt's cache and give it away; how many blocks."""
        self.worker.loop.add(Request("given", prompt, SamplingParams(8), cache_salt=salt), (), 0, 0.0)
        tokens(self.worker, 1)
        assert self.worker.mover
        blocks = self.worker.mover.give("given", path)
        self.worker.loop.abort("given")
        return blocks

    def take(self, path: Path) -> int:
        assert self.worker.mover
        return self.worker.mover.take(path)

    def chosen(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        """The likeliest answer."""
        self.worker.loop.add(Request("asked", prompt, SamplingParams(count, temperature=0.0)), (), 0, 0.0)
        return tuple(tokens(self.worker, count))

    def logits(self, prompt: tuple[int, ...], answer: tuple[int, ...], salt: bytes = b"") -> Float32:
        """Behind the first tokens of an answer, as many as are told: [T - 1, V]."""
        params, found = SamplingParams(len(answer) + 1), []
        for count in range(1, len(answer)):
            self.worker.loop.add(Request(f"{count}", prompt, params, cache_salt=salt), answer[:count], 0, 0.0)
            tokens(self.worker, 1)
            self.worker.loop.abort(f"{count}")
            found.append(self._last)
        return np.stack(found)

    def close(self) -> None:
        self.worker.loop.close()
        self.worker.runtime.close()
