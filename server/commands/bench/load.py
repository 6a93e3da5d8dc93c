"""Runs the load: the order of servers, and every client's requests one after the other."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from server.commands.bench.measured import (
    MeasuredAnswer,
    Reading,
    ScrapedCounters,
    ask,
    between,
    read_metrics,
)
from server.commands.bench.prompts import BenchPrompt, PromptSource
from server.commands.http_client import ServerClient

SETTLE_S = 3.0
SETTLE_STEP_S = 0.05


class BenchTarget(ServerClient):
    def __init__(self, name: str, url: str, api_key: str, model: str, timeout_s: float) -> None:
        """Raises UnusableAddress."""
        super().__init__(url, api_key, model, httpx.Timeout(timeout_s), keep_alive_s=0)  # some close kept ones
        self.name = name
        self.extra: Mapping[str, Any] = {}  # fields sent beyond the standard ones

    async def answer(self, prompt: BenchPrompt, max_tokens: int) -> MeasuredAnswer:
        return await ask(self, prompt, {"max_tokens": max_tokens, "temperature": 0, **self.extra})

    async def counters(self) -> ScrapedCounters | None:
        """The engine's counters once nothing runs any more; None when the server has none of ours."""
        deadline = time.monotonic() + SETTLE_S
        previous: Reading | None = None
        while True:
            reading = await self._reading()
            is_settled = reading is None or (reading.unfinished == 0 and reading == previous)
            if reading is None or is_settled or time.monotonic() > deadline:
                return None if reading is None else reading.counters
            previous = reading
            await asyncio.sleep(SETTLE_STEP_S)

    async def _reading(self) -> Reading | None:
        text = await self.text_at("metrics")
        return None if text is None else read_metrics(text)


@dataclass(frozen=True, slots=True)
class BenchLoad:
    """What is measured. Every client sends `requests_per_client` requests, each after the answer to the one before."""

    clients: tuple[int, ...]
    requests_per_client: int
    max_tokens: int
    rounds: int
    prefix_tokens: int = 0


@dataclass(frozen=True, slots=True)
class BenchTurn:
    """One server under one number of clients; `server` is its place in the list of targets."""

    clients: int
    round: int
    server: int


@dataclass(slots=True)
class TurnRecord:
    """What a turn gave, filled while it runs so that a run that is stopped keeps it. Clock in seconds."""

    turn: BenchTurn
    answers: list[MeasuredAnswer] = field(default_factory=list)
    seconds: float = 0.0
    own_cpu_s: float = 0.0  # time the load generator itself computed
    counters: ScrapedCounters | None = None
    is_complete: bool = False


@dataclass(slots=True)
class PrefixRecord:
    """One prefix sent for the first time, and sent again with other endings."""

    server: int
    cold: MeasuredAnswer | None = None
    warm: list[MeasuredAnswer] = field(default_factory=list)


@dataclass(slots=True)
class Book:
    """Everything measured so far. Owned by the run; read by the report, also after Ctrl-C."""

    turns: list[TurnRecord] = field(default_factory=list)
    prefixes: list[PrefixRecord] = field(default_factory=list)


WARM_ASKS = 3


def turns(clients: Sequence[int], rounds: int, servers: int) -> list[BenchTurn]:
    """The order of play: per client count the servers alternate (A B A B ...), so that drift hits all alike."""
    return [
        BenchTurn(count, number, server) for count in clients for number in range(rounds) for server in range(servers)
    ]


async def measure(
    targets: Sequence[BenchTarget],
    prompts: PromptSource,
    load: BenchLoad,
    book: Book,
    on_turn: Callable[[TurnRecord], None],
) -> None:
    """Fill `book`; `on_turn` is called after every turn."""
    if load.prefix_tokens:
        for number in range(load.rounds):
            for server, target in enumerate(targets):
                await _measure_prefix(target, prompts, load, number, _kept(book.prefixes, PrefixRecord(server)))
    for turn in turns(load.clients, load.rounds, len(targets)):
        record = TurnRecord(turn)
        book.turns.append(record)
        await _play(targets[turn.server], prompts, load, record)
        on_turn(record)


async def _measure_prefix(
    target: BenchTarget, prompts: PromptSource, load: BenchLoad, number: int, record: PrefixRecord
) -> None:
    record.cold = await target.answer(prompts.prefixed(load.prefix_tokens, number, "cold"), 1)
    for tail in range(WARM_ASKS):
        record.warm.append(await target.answer(prompts.prefixed(load.prefix_tokens, number, tail), 1))


def _kept(records: list[PrefixRecord], record: PrefixRecord) -> PrefixRecord:
    records.append(record)
    return record


async def _play(target: BenchTarget, prompts: PromptSource, load: BenchLoad, record: TurnRecord) -> None:
    before = await target.counters()
    started, started_cpu = time.perf_counter(), time.process_time()
    try:
        async with asyncio.TaskGroup() as group:
            for client in range(record.turn.clients):
                group.create_task(_one_client(target, prompts, load, record, client))
        record.is_complete = True
    finally:
        record.seconds = time.perf_counter() - started
        record.own_cpu_s = time.process_time() - started_cpu
    after = await target.counters()
    if before is not None and after is not None:
        record.counters = between(before, after)


async def _one_client(
    target: BenchTarget, prompts: PromptSource, load: BenchLoad, record: TurnRecord, client: int
) -> None:
    for request in range(load.requests_per_client):
        prompt = prompts.prompt(record.turn.clients, record.turn.round, client, request)
        record.answers.append(await target.answer(prompt, load.max_tokens))
