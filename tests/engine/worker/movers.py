"""Workers of which one goes on with what another began."""

from pathlib import Path

from engine.config import EngineConfig
from engine.request import Request, SamplingParams
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
