"""Where a sequence runs when there are two devices, and whether what one has computed of it fits the other."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from engine.client.recovery import PendingRequest
from engine.client.supervisor import Supervisor
from engine.config import CPU_DEVICE
from engine.errors import EngineFailure, HexserveError
from engine.request import Request, SamplingParams, TokenEvent

CLEARLY = 1.1  # how many times better another device must be before a stream moves
MOVE_MS = 5.0  # of a stream's way to another device, beside what each of its tokens takes
MOVE_TOKEN_MS = 0.05  # until it has been measured
USUAL_ANSWER = 128  # tokens that are still to come, where nothing better is known


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """steps: rows, past columns and milliseconds of measured steps, at least one. is_free: whether what lies
    between them costs what lies between; else a step takes the next larger shape."""

    steps: tuple[tuple[int, int, float], ...]
    is_free: bool

    def step_ms(self, rows: int, context: int) -> float:
        pasts = sorted({columns for _, columns, _ in self.steps})
        if self.is_free:
            return float(np.interp(context, pasts, [self._at_rows(rows, past) for past in pasts]))
        return self._at_rows(rows, next((past for past in pasts if past >= context), pasts[-1]))

    def _at_rows(self, rows: int, past: int) -> float:
        line = sorted((at, ms) for at, columns, ms in self.steps if columns == past)
        counts, times = [at for at, _ in line], [ms for _, ms in line]
        if rows > counts[-1]:  # several steps, or a longer one: what a row costs where rows are cheapest
            return times[-1] * rows / counts[-1]
        if self.is_free:
            return float(np.interp(rows, counts, times))
        return min(ms for at, ms in line if at >= rows)

    def prompt_ms(self, tokens: int) -> float:
        """Expected milliseconds to read a prompt in steps of its own."""
        if tokens <= 0:
            return 0.0
        return min(self._in_chunks(tokens, rows) for rows, _, _ in self.steps)

    def _in_chunks(self, tokens: int, rows: int) -> float:
        whole, rest = divmod(tokens, rows)
        first = whole * self.step_ms(rows, tokens // 2)
        return first + (self.step_ms(rest, tokens) if rest else 0.0)


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """What a device has to do. streams: sequences that get tokens; context: cached tokens of one of them, on average.

    unread: tokens of prompts that are still to be read.
    """

    costs: DeviceCosts
    streams: int = 0
    context: int = 0
    unread: int = 0

    def added_ms(self, context: int) -> float:
        """By how much a round of tokens of all streams gets longer with one more of them, times those who wait."""
        return self._round_ms(self.streams + 1, context) - self._round_ms(self.streams, self.context)

    def saved_ms(self, context: int) -> float:
        return self._round_ms(self.streams, context) - self._round_ms(self.streams - 1, self.context)

    def _round_ms(self, streams: int, context: int) -> float:
        if streams <= 0:
            return 0.0
        busy = self.costs.prompt_ms(self.unread) / USUAL_ANSWER  # prompts are read between the tokens of streams
        return streams * (self.costs.step_ms(streams, context) + busy)


def candidates(serving: Sequence[int], names: Sequence[str], saves_power: bool) -> list[int]:
    """Of the devices that serve those that may get a stream: to save power none but the CPU is left out.

    names: of all devices, as their workers tell them.
    """
    others = [index for index in serving if names[index] != CPU_DEVICE]
    return others if saves_power and others else list(serving)


def reader(prompt: int, loads: Sequence[DeviceLoad]) -> int:
    """The device that has read a new prompt first."""
    # The first step waits for one round of the streams that are there.
    rounds = [load.costs.step_ms(load.streams, load.context) if load.streams else 0.0 for load in loads]
    waits = [load.costs.prompt_ms(load.unread + prompt) + ms for load, ms in zip(loads, rounds, strict=True)]
    return waits.index(min(waits))


def writer(here: int, context: int, left: int, loads: Sequence[DeviceLoad], token_ms: float = MOVE_TOKEN_MS) -> int:
    """The device for the next tokens of a stream that is at `here`, counted among its streams.

    context: its cached tokens. left: most tokens that are still to come. token_ms: what the way takes for each of its
    tokens.
    """
    saved = loads[here].saved_ms(context)
    added = [load.added_ms(context) if index != here else saved for index, load in enumerate(loads)]
    there = added.index(min(added))
    gain = (saved - CLEARLY * added[there]) * min(left, USUAL_ANSWER)
    return there if there != here and gain > MOVE_MS + token_ms * context else here


MOST_LOSS = 1.0  # nats: codes of 4 bits cost a fraction of it, keys of another basis many times as much
MOST_LOGPROBS = 20
LEAST = 1e-9  # probability
ENDLESS = 4096  # tokens: little of it ends before it is handed over
TRIES = 8  # a fast worker may be at its end before this process, which others keep busy, has asked for it

Answer = TokenEvent | PendingRequest


class HandOverCheck:
    """Requests of its own, of which no client knows. What comes of them is given to `settle`."""

    def __init__(self) -> None:
        self._awaited: dict[tuple[str, bool], asyncio.Future[Answer]] = {}  # by id, and whether it is handed over

    async def loss(self, giver: Supervisor, taker: Supervisor, prompt: tuple[int, ...], path: Path) -> float:
        """KL in nats of a token's probabilities at the taker with the giver's keys and values, from those with its own.

        Infinity where the taker could make nothing of them. Raises what a worker fails with.
        """
        params = SamplingParams(ENDLESS, temperature=0.0, logprobs=MOST_LOGPROBS, min_tokens=ENDLESS)
        asked = Request(f"check {path.name}", prompt, params, cache_salt=path.name.encode()[:64])
        handed = await self._handed(giver, asked, path)
        tops: list[dict[int, float]] = []
        is_taken = bool(handed.caches)
        for caches, salt in ((handed.caches, asked.cache_salt), ("", b"own")):
            again = replace(asked, id=f"{asked.id} {len(tops)}", cache_salt=salt)
            event = await self._asked(taker, PendingRequest(again, list(handed.emitted), caches))
            tops.append(dict(event.logprobs[0].top))
            taker.abort(again.id)
            is_taken = is_taken and (not caches or event.cached_tokens > 0)
        return top_kl(tops[1], tops[0]) if is_taken else math.inf

    async def _handed(self, giver: Supervisor, asked: Request, path: Path) -> PendingRequest:
        """The request behind its first token, with what the giver has computed of it."""
        for number in range(TRIES):
            once = replace(asked, id=f"{asked.id} try {number}")
            handed = self._answer(once.id, True)  # its end may come together with its first token
            try:
                await self._asked(giver, PendingRequest(once))
                giver.hand_over(once.id, str(path))
                if isinstance(found := await handed, PendingRequest):
                    return found
            finally:
                handed.cancel()
        raise EngineFailure(f"devices: {TRIES} prompts ended before one device could hand them to another")

    def settle(self, request_id: str, answer: Answer | HexserveError) -> bool:
        """Whether a check has asked for it; then it is no one else's."""
        if not request_id.startswith("check "):
            return False
        for key, future in [(key, future) for key, future in self._awaited.items() if key[0] == request_id]:
            if future.done() or isinstance(answer, HexserveError):
                del self._awaited[key]
            if future.done():
                continue
            if isinstance(answer, HexserveError):
                future.set_exception(answer)
            elif key[1] == isinstance(answer, PendingRequest) or _has_ended(answer):
                self._awaited.pop(key).set_result(answer)
        return True

    async def _asked(self, worker: Supervisor, pending: PendingRequest) -> TokenEvent:
        answer = self._answer(pending.request.id, False)
        worker.adopt(pending)
        event = await answer
        assert isinstance(event, TokenEvent)
        return event

    def _answer(self, request_id: str, is_handed: bool) -> "asyncio.Future[Answer]":
        key = request_id, is_handed
        self._awaited[key] = asyncio.get_running_loop().create_future()
        return self._awaited[key]


def _has_ended(answer: Answer) -> bool:
    return isinstance(answer, TokenEvent) and answer.finish is not None


def top_kl(own: Mapping[int, float], other: Mapping[int, float]) -> float:
    """KL in nats of the likeliest tokens, and all others as one; a token that the other lacks is as its last one."""
    least = min(other.values())
    pairs = [(math.exp(log), math.exp(other.get(token, least))) for token, log in own.items()]
    rest = max(LEAST, 1.0 - sum(p for p, _ in pairs)), max(LEAST, 1.0 - sum(q for _, q in pairs))
    return sum(p * math.log(max(p, LEAST) / max(q, LEAST)) for p, q in (*pairs, rest))
