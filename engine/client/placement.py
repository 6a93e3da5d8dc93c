"""Where a sequence runs when there are two devices, and whether what one has computed of it fits the other."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from engine.client.info import EngineState
from engine.client.recovery import PendingRequest
from engine.client.supervisor import Supervisor
from engine.config import CPU_DEVICE
from engine.errors import EngineFailure, HexserveError
from engine.messages import Ready
from engine.request import Request, SamplingParams, TokenEvent

CLEARLY = 1.1  # how many times better another device must be before a stream moves
MOVE_MS = 5.0  # of a stream's way to another device, beside what each of its tokens takes
MOVE_TOKEN_MS = 0.05  # until it has been measured
USUAL_ANSWER = 128  # tokens that are still to come, where nothing better is known
# The state of a group is the best of its devices' while one of them serves.
BEST_FIRST = [EngineState(name) for name in ("ready", "restarting", "loading", "draining", "dead", "stopped")]
# Long enough for two blocks of any tokenizer.
CHECK_TEXT = (
    "The two lighthouses stand a mile apart. When fog comes in from the sea, the keeper of the first one rings a bell "
    "three times, and the keeper of the second one answers. Nobody remembers who began it. The ships that pass hear "
    "both bells and know from the time between them how far away the rocks are, and"
)
CHECKED_TOKENS = 64
MOST_LOSS = 1.0  # nats: codes of 4 bits cost a fraction of it, keys of another basis many times as much
MOST_LOGPROBS = 20
LEAST = 1e-9  # probability
ENDLESS = 4096  # tokens: little of it ends before it is handed over
TRIES = 8  # a fast worker may be at its end before this process, which others keep busy, has asked for it
Answer = TokenEvent | PendingRequest


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
        return min(self._in_chunks(tokens, rows) for rows, _, _ in self.steps) if tokens > 0 else 0.0

    def _in_chunks(self, tokens: int, rows: int) -> float:
        whole, rest = divmod(tokens, rows)
        return whole * self.step_ms(rows, tokens // 2) + (self.step_ms(rest, tokens) if rest else 0.0)


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """What a device has to do. streams: sequences that get tokens; context: cached tokens of one of them, on average.
    unread: tokens of prompts that are still to be read."""

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
    """Those that may get a stream: to save power the CPU is left out. names: of all devices, as their workers say."""
    others = [index for index in serving if names[index] != CPU_DEVICE]
    return others if saves_power and others else list(serving)


def reader(prompt: int, loads: Sequence[DeviceLoad]) -> int:
    """The device that has read a new prompt first."""
    # The first step waits for one round of the streams that are there.
    rounds = [load.costs.step_ms(load.streams, load.context) if load.streams else 0.0 for load in loads]
    waits = [load.costs.prompt_ms(load.unread + prompt) + ms for load, ms in zip(loads, rounds, strict=True)]
    return waits.index(min(waits))


def writer(here: int, context: int, left: int, loads: Sequence[DeviceLoad], token_ms: float = MOVE_TOKEN_MS) -> int:
    """The device for the next tokens of a stream that is at `here`, counted among its streams. context: its cached
    tokens. left: most tokens that are still to come. token_ms: what the way takes for each of its tokens."""
    saved = loads[here].saved_ms(context)
    added = [load.added_ms(context) if index != here else saved for index, load in enumerate(loads)]
    there = added.index(min(added))
    gain_ms = (saved - CLEARLY * added[there]) * min(left, USUAL_ANSWER)
    return there if there != here and gain_ms > MOVE_MS + token_ms * context else here


@dataclass(slots=True)
class PlacedRequest:
    """Where a request is. target: the device that it is being handed to. reads: whether its prompt is being read."""

    at: int
    may_move: bool
    target: int | None = None
    reads: bool = True


@dataclass(slots=True)
class GroupDevice:
    """One of the group. costs: None until its worker is ready, or where it measured nothing."""

    supervisor: Supervisor
    ready: Ready | None = None
    costs: DeviceCosts | None = None


def can_move(request: Request) -> bool:
    """Whether what two devices compute of a request is the same: one of tokens alone, of the model itself."""
    more = request.images or request.audio or request.prompt_embeds or request.adapter
    return not more and request.pooling is None and request.params.prompt_logprobs is None


class PlacedRequests:
    """Which device each request is at. devices: of the group, which may leave some out."""

    def __init__(self, devices: Sequence[GroupDevice], saves_power: bool) -> None:
        self._devices, self._saves_power = devices, saves_power
        self.requests: dict[str, PlacedRequest] = {}  # that have not ended, by their ids

    def first_serving(self) -> int:
        """Where none serves it is one that will."""
        states = [BEST_FIRST.index(device.supervisor.state) for device in self._devices]
        return states.index(min(states))

    def reader(self, prompt: int) -> int:
        """The device that reads a prompt of so many tokens first; one that is busy only where all are."""
        with_room = [index for index in self.serving() if self._devices[index].supervisor.has_room]
        places = self._candidates(with_room or self.serving())
        if loads := self._loads(places):
            return places[reader(prompt, loads)]
        return places[0] if places else self.first_serving()

    def serving(self) -> list[int]:
        return [index for index, device in enumerate(self._devices) if device.supervisor.state is EngineState.READY]

    def _candidates(self, serving: Sequence[int]) -> list[int]:
        names = [device.ready.device if device.ready is not None else "" for device in self._devices]
        return candidates(serving, names, self._saves_power)

    def _loads(self, devices: Sequence[int]) -> list[DeviceLoad]:
        """Of those devices; none where one of them has no costs to compare."""
        found: list[DeviceLoad] = []
        for index in devices:
            device = self._devices[index]
            if device.costs is None:
                return []
            contexts, unread = [], 0
            for request_id, placed in self.requests.items():
                pending = device.supervisor.pending.get(request_id) if placed.at == index else None
                if pending is not None and placed.reads:
                    unread += pending.tokens
                elif pending is not None:
                    contexts.append(pending.tokens)
            mean = sum(contexts) // len(contexts) if contexts else 0
            found.append(DeviceLoad(device.costs, len(contexts), mean, unread))
        return found

    def writer(self, index: int, context: int, left: int, token_ms: float) -> int:
        """Where the next tokens of a stream at device `index` come cheapest; the rest as for `writer`."""
        places = self._candidates(self.serving())
        if index not in places:
            return places[0]
        loads = self._loads(places) if len(places) > 1 else []
        return places[writer(places.index(index), context, left, loads, token_ms)] if loads else index


class HandOverCheck:
    """Requests of its own, of which no client knows. What comes of them is given to `settle`."""

    def __init__(self) -> None:
        self._awaited: dict[tuple[str, bool], asyncio.Future[Answer]] = {}  # by id, and whether it is handed over

    async def loss(self, giver: Supervisor, taker: Supervisor, prompt: tuple[int, ...], path: Path) -> float:
        """KL in nats of a token's probabilities at the taker with the giver's keys and values, from those with its own.
        Infinity where the taker could make nothing of them. Raises what a worker fails with."""
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
                giver.abort(once.id)  # which has it no more, unless this has failed
        raise EngineFailure(f"devices: {TRIES} prompts ended before one device could hand them to another")

    def settle(self, request_id: str, answer: Answer | HexserveError) -> bool:
        """Whether a check has asked for it; then it is no one else's."""
        if not request_id.startswith("check "):
            return False
        has_ended = isinstance(answer, TokenEvent) and answer.finish is not None
        for key, future in [(key, future) for key, future in self._awaited.items() if key[0] == request_id]:
            if future.done():
                del self._awaited[key]
            elif isinstance(answer, HexserveError):
                self._awaited.pop(key).set_exception(answer)
            elif has_ended or key[1] == isinstance(answer, PendingRequest):
                self._awaited.pop(key).set_result(answer)
        return True

    async def _asked(self, worker: Supervisor, pending: PendingRequest) -> TokenEvent:
        answer = self._answer(pending.request.id, False)
        worker.adopt(pending)
        try:
            event = await answer
        except asyncio.CancelledError:
            worker.abort(pending.request.id)
            raise
        assert isinstance(event, TokenEvent)
        return event

    def _answer(self, request_id: str, is_handed: bool) -> "asyncio.Future[Answer]":
        future = self._awaited[request_id, is_handed] = asyncio.get_running_loop().create_future()
        return future


def top_kl(own: Mapping[int, float], other: Mapping[int, float]) -> float:
    """KL in nats of the likeliest tokens, and all others as one; a token that the other lacks is as its last one."""
    least = min(other.values())
    pairs = [(math.exp(log), math.exp(other.get(token, least))) for token, log in own.items()]
    rest = max(LEAST, 1.0 - sum(p for p, _ in pairs)), max(LEAST, 1.0 - sum(q for _, q in pairs))
    return sum(p * math.log(max(p, LEAST) / max(q, LEAST)) for p, q in (*pairs, rest))
