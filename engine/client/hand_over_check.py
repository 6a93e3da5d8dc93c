"""Whether what one worker has computed of a prompt means the same to another one."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from engine.client.recovery import PendingRequest
from engine.client.supervisor import Supervisor
from engine.errors import EngineFailure, HexserveError
from engine.request import Request, SamplingParams, TokenEvent

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

        Raises what a worker fails with.
        """
        params = SamplingParams(ENDLESS, temperature=0.0, logprobs=MOST_LOGPROBS, min_tokens=ENDLESS)
        asked = Request(f"check {path.name}", prompt, params, cache_salt=path.name.encode()[:64])
        handed = await self._handed(giver, asked, path)
        tops: list[dict[int, float]] = []
        for caches, salt in ((handed.caches, asked.cache_salt), ("", b"own")):
            again = replace(asked, id=f"{asked.id} {len(tops)}", cache_salt=salt)
            event = await self._asked(taker, PendingRequest(again, list(handed.emitted), caches))
            tops.append(dict(event.logprobs[0].top))
            taker.abort(again.id)
        return top_kl(tops[1], tops[0])

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
