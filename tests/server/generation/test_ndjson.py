"""Lines of JSON, and what is sent while nothing comes."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from engine.errors import HexserveError, StepFailed
from engine.request import Delta, FinishReason
from server.generation.framing import LINES, frames, line
from server.generation.stream import ChoiceDelta
from server.http.errors import from_engine


class Stream:
    """Deltas written down beforehand; None stands for nothing coming until somebody stops waiting."""

    def __init__(self, *steps: str | HexserveError | None) -> None:
        self.steps = list(steps)
        self.aborted = 0

    async def deltas(self) -> list[ChoiceDelta]:
        step = self.steps.pop(0)
        if step is None:
            await asyncio.Event().wait()
        if isinstance(step, HexserveError):
            raise step
        return [ChoiceDelta(0, Delta(step or "", finish=FinishReason.STOP if step == "end" else None))]

    def abort(self) -> None:
        self.aborted += 1


class Writer:
    """A line a delta."""

    ending = b""
    finished = False

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[dict[str, Any]]:
        self.finished = any(delta.finish is not None for _, delta in deltas)
        return [{"said": delta.text} for _, delta in deltas]

    def last_chunks(self) -> list[dict[str, Any]]:
        return [{"done": True}]

    def failure(self, error: HexserveError) -> list[dict[str, Any]]:
        return [{"error": from_engine(error).message}]


async def pieces(stream: Stream, idle_s: float = 0.0) -> list[bytes]:
    return [piece async for piece in frames(stream, [], Writer(), LINES, idle_s)]  # type: ignore[arg-type]


def test_a_line() -> None:
    assert line({"text": "a\nb"}) == b'{"text":"a\\nb"}\n'


async def test_every_chunk_is_a_line() -> None:
    stream = Stream("a", "end")
    assert await pieces(stream) == [b'{"said":"a"}\n', b'{"said":"end"}\n', b'{"done":true}\n']
    assert stream.aborted == 1


async def test_while_nothing_comes_the_next_line_begins_with_white_space() -> None:
    found = await pieces(Stream("a", None, "end"), idle_s=0.001)
    assert found == [b" ", b'{"said":"a"}\n', b" ", b'{"said":"end"}\n', b'{"done":true}\n']
    assert [json.loads(one) for one in b"".join(found).splitlines()] == [{"said": "a"}, {"said": "end"}, {"done": True}]


async def test_a_failure_is_the_last_line() -> None:
    assert await pieces(Stream("a", StepFailed("broken"))) == [b'{"said":"a"}\n', b'{"error":"broken"}\n']
