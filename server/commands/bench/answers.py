"""One streamed request and what its reader saw of it."""

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from server.commands.bench.prompts import BenchPrompt
from server.commands.http_client.client import AnswerFailed, AnswerRefused, ServerClient
from server.commands.http_client.event_stream import Piece, StreamedUsage


class AnswerOutcome(StrEnum):
    """How a request ended. Refusals under load are no failures: they are the server's answer to too much."""

    OK = "ok"
    FAILED = "failed"
    RATE_LIMITED = "429"
    BUSY = "503"


REFUSALS: Mapping[int, AnswerOutcome] = {429: AnswerOutcome.RATE_LIMITED, 503: AnswerOutcome.BUSY}


@dataclass(frozen=True, slots=True)
class MeasuredAnswer:
    """Seconds are counted from the moment the request was sent; `gaps_s` lie between arrivals of visible text."""

    outcome: AnswerOutcome
    seconds: float
    first_token_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    usage: StreamedUsage | None = None
    status: int = 0
    error: str = ""

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time per token after the first; None with fewer than two tokens or arrivals."""
        if self.usage is None or self.usage.completion < 2 or not self.gaps_s:
            return None
        return sum(self.gaps_s) / (self.usage.completion - 1)


class Reader:
    """Collects the pieces of one stream with the times they came at, in seconds of a monotonic clock."""

    def __init__(self, sent_at: float) -> None:
        self._sent_at = sent_at
        self._arrivals: list[float] = []
        self._usage: StreamedUsage | None = None
        self._error = ""
        self._is_finished = False

    def take(self, piece: Piece, now: float) -> None:
        """Note one piece that came at `now`."""
        if piece.has_output:
            self._arrivals.append(now)
        self._usage = piece.usage or self._usage
        self._is_finished = self._is_finished or piece.finish_reason is not None
        self._error = self._error or piece.error

    def answer(
        self, now: float, status: int = 200, error: str = "", outcome: AnswerOutcome | None = None
    ) -> MeasuredAnswer:
        """The whole, ended at `now`; `error` and `outcome` say what ended it, otherwise the pieces do."""
        error = error or self._error or ("" if outcome else self._lacking())
        arrivals = self._arrivals
        return MeasuredAnswer(
            outcome=outcome or (AnswerOutcome.FAILED if error else AnswerOutcome.OK),
            seconds=now - self._sent_at,
            first_token_s=arrivals[0] - self._sent_at if arrivals else None,
            gaps_s=tuple(later - earlier for earlier, later in itertools.pairwise(arrivals)),
            usage=self._usage,
            status=status,
            error=error,
        )

    def _lacking(self) -> str:
        if not self._is_finished:
            return "the stream ended before a finish_reason came"
        return "" if self._usage else "no usage in the stream, so its tokens cannot be counted"


async def ask(client: ServerClient, prompt: BenchPrompt, fields: Mapping[str, Any]) -> MeasuredAnswer:
    """Send one streamed request. Everything that goes wrong on the way is in the answer."""
    reader = Reader(time.perf_counter())
    send = client.complete(prompt, fields) if isinstance(prompt, tuple) else client.stream(prompt, fields)
    try:
        async for piece, arrived_at in send:
            reader.take(piece, arrived_at)
    except AnswerRefused as refusal:
        outcome = REFUSALS.get(refusal.status, AnswerOutcome.FAILED)
        return reader.answer(time.perf_counter(), refusal.status, str(refusal), outcome)
    except AnswerFailed as error:
        return reader.answer(time.perf_counter(), error.status, str(error))
    return reader.answer(time.perf_counter())
