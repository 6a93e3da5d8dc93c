"""Runs the load: the order of servers, and every client's requests one after the other; the figures of the report."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import httpx

from server.commands.bench import measured
from server.commands.bench.measured import AnswerOutcome, MeasuredAnswer, PromptSource, distribution, median, ratio
from server.commands.http_client import ServerClient

SETTLE_S = 3.0
SETTLE_STEP_S = 0.05
WARM_ASKS = 3
ONE_EACH = 0.9  # chunks a token


class BenchTarget(ServerClient):
    def __init__(self, name: str, url: str, api_key: str, model: str, timeout_s: float) -> None:
        """Raises UnusableAddress."""
        super().__init__(url, api_key, model, httpx.Timeout(timeout_s), keep_alive_s=0)  # some close kept ones
        self.name = name
        self.extra: Mapping[str, Any] = {}  # fields sent beyond the standard ones
        self.counting: Mapping[str, Any] = {}  # of them those that have every chunk tell its tokens

    async def answer(self, prompt: measured.BenchPrompt, max_tokens: int) -> MeasuredAnswer:
        # Of servers that would sample the ignored end, which is no text, some forbid it before min_tokens.
        whole = {"min_tokens": max_tokens} if self.extra else {}
        fields = {**self.extra, **self.counting, **whole}
        return await measured.ask(self, prompt, fields | {"max_tokens": max_tokens, "temperature": 0})

    async def counters(self) -> measured.ScrapedCounters | None:
        """The engine's counters once nothing runs any more; None when the server has none of ours."""
        deadline = time.monotonic() + SETTLE_S
        previous: measured.Reading | None = None
        while (text := await self.text_at("metrics")) is not None and (reading := measured.read_metrics(text)):
            if (reading.unfinished == 0 and reading == previous) or time.monotonic() > deadline:
                return reading.counters
            previous = reading
            await asyncio.sleep(SETTLE_STEP_S)
        return None


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
    counters: measured.ScrapedCounters | None = None
    is_complete: bool = False


@dataclass(slots=True)
class PrefixRecord:
    """One prefix sent for the first time, and sent again with other endings."""

    server: int
    cold: MeasuredAnswer | None = None
    warm: list[MeasuredAnswer] = field(default_factory=list)


def turns(clients: Sequence[int], rounds: int, servers: int) -> list[BenchTurn]:
    """The order of play: per client count the servers alternate (A B A B ...), so that drift hits all alike."""
    return [
        BenchTurn(count, number, server) for count in clients for number in range(rounds) for server in range(servers)
    ]


async def measure(
    targets: Sequence[BenchTarget],
    prompts: PromptSource,
    load: BenchLoad,
    book: "Book",
    on_turn: Callable[[TurnRecord], None],
) -> None:
    """Fill `book`; `on_turn` is called after every turn."""
    for number in range(load.rounds if load.prefix_tokens else 0):
        for server, target in enumerate(targets):
            book.prefixes.append(effect := PrefixRecord(server))
            effect.cold = await target.answer(prompts.prefixed(load.prefix_tokens, number, "cold"), 1)
            for tail in range(WARM_ASKS):
                effect.warm.append(await target.answer(prompts.prefixed(load.prefix_tokens, number, tail), 1))
    for turn in turns(load.clients, load.rounds, len(targets)):
        book.turns.append(record := TurnRecord(turn))
        await _play(targets[turn.server], prompts, load, record)
        on_turn(record)


async def _play(target: BenchTarget, prompts: PromptSource, load: BenchLoad, record: TurnRecord) -> None:
    async def one_client(client: int) -> None:
        for request in range(load.requests_per_client):
            prompt = prompts.prompt(record.turn.clients, record.turn.round, client, request)
            record.answers.append(await target.answer(prompt, load.max_tokens))

    before = await target.counters()
    started, started_cpu = time.perf_counter(), time.process_time()
    try:
        async with asyncio.TaskGroup() as group:
            for client in range(record.turn.clients):
                group.create_task(one_client(client))
        record.is_complete = True
    finally:
        record.seconds = time.perf_counter() - started
        record.own_cpu_s = time.process_time() - started_cpu
    after = await target.counters()
    record.counters = measured.between(before, after) if before and after else None


@dataclass(frozen=True, slots=True)
class Level:
    """One server under one number of clients, over all its turns. gap: of `measured.token_gaps`. per_token: mean time
    per token of each answer after its first token. chunks_per_token: below 1 when the server sends several tokens at
    once; unless chunks tell how many (is_counted), gaps are longer than tokens."""

    clients: int
    server: int
    tokens_per_second: float | None
    first_token: measured.Distribution
    gap: measured.Distribution
    per_token: measured.Distribution
    outcomes: dict[str, int]
    prompt_tokens: float | None
    cached_tokens: int
    output_tokens: int
    chunks_per_token: float | None
    is_counted: bool
    own_cpu: float | None
    seconds: float
    counters: measured.ScrapedCounters | None
    is_complete: bool

    @property
    def gaps_are_of_tokens(self) -> bool:
        """Whether chunks tell their tokens or carry one each, nearly all of them."""
        return self.is_counted or (self.chunks_per_token or 1.0) >= ONE_EACH


@dataclass(frozen=True, slots=True)
class Comparison:
    """A later server against the first, per client count: ratios of the same round, and their extremes. Of gaps None
    where those of one server alone are of tokens."""

    clients: int
    server: int
    tokens_per_second: float | None
    lowest: float | None
    highest: float | None
    first_token_p50: float | None
    gap_p50: float | None
    gap_p95: float | None


@dataclass(frozen=True, slots=True)
class PrefixEffect:
    """Median time to the first token of a prefix never seen before, and of one sent before."""

    server: int
    cold_s: float | None
    warm_s: float | None
    warm_over_cold: float | None
    prompt_tokens: float | None
    cached_tokens: float | None


@dataclass(slots=True)
class Book:
    """Everything measured so far. Owned by the run; read by the report, also after Ctrl-C."""

    turns: list[TurnRecord] = field(default_factory=list)
    prefixes: list[PrefixRecord] = field(default_factory=list)

    def answers(self) -> list[MeasuredAnswer]:
        of_prefixes = [a for record in self.prefixes for a in (record.cold, *record.warm) if a is not None]
        return [*of_prefixes, *(a for record in self.turns for a in record.answers)]

    def errors(self) -> list[tuple[str, int]]:
        return Counter(each.error for each in self.answers() if each.outcome is not AnswerOutcome.OK).most_common(5)

    def levels(self) -> list[Level]:
        grouped: dict[tuple[int, int], list[TurnRecord]] = {}
        for record in self.turns:
            grouped.setdefault((record.turn.clients, record.turn.server), []).append(record)
        return [_level(clients, server, turns) for (clients, server), turns in grouped.items()]

    def comparisons(self) -> list[Comparison]:
        """Every server but the first against the first, from rounds that both finished without a failure."""
        finished: dict[tuple[int, int, int], Level] = {}
        for record in self.turns:
            turn, has_failed = record.turn, any(each.outcome is AnswerOutcome.FAILED for each in record.answers)
            if record.is_complete and not has_failed:
                finished[turn.clients, turn.server, turn.round] = _level(turn.clients, turn.server, [record])
        found: dict[tuple[int, int], list[tuple[Level, Level]]] = {}
        for (clients, server, number), level in finished.items():
            first = finished.get((clients, 0, number))
            if server > 0 and first is not None:
                found.setdefault((clients, server), []).append((level, first))
        return [_comparison(clients, server, pairs) for (clients, server), pairs in found.items()]

    def prefix_effects(self) -> list[PrefixEffect]:
        servers = sorted({record.server for record in self.prefixes})
        return [_prefix_effect(at, [record for record in self.prefixes if record.server == at]) for at in servers]


def _level(clients: int, server: int, records: Sequence[TurnRecord]) -> Level:
    answers = [answer for record in records for answer in record.answers]
    good = [answer for answer in answers if answer.outcome is AnswerOutcome.OK]
    usages = [answer.usage for answer in good if answer.usage is not None]
    output = sum(usage.completion for usage in usages)
    seconds = sum(record.seconds for record in records)
    return Level(
        clients=clients,
        server=server,
        tokens_per_second=ratio(output, seconds),
        first_token=distribution([answer.first_token_s for answer in good if answer.first_token_s is not None]),
        gap=distribution([gap for answer in good for gap in answer.gaps_s]),
        per_token=distribution([each for answer in good if (each := answer.seconds_per_token) is not None]),
        outcomes={outcome.value: sum(answer.outcome is outcome for answer in answers) for outcome in AnswerOutcome},
        prompt_tokens=ratio(sum(usage.prompt for usage in usages), len(usages)),
        cached_tokens=sum(usage.cached for usage in usages),
        output_tokens=output,
        is_counted=all(answer.is_counted for answer in good),
        chunks_per_token=ratio(sum(answer.chunks for answer in good), output),
        own_cpu=ratio(sum(record.own_cpu_s for record in records), seconds),
        seconds=seconds,
        counters=measured.total([record.counters for record in records if record.counters is not None]),
        is_complete=all(record.is_complete for record in records),
    )


def _comparison(clients: int, server: int, pairs: Sequence[tuple[Level, Level]]) -> Comparison:
    def ratios(field: str, pairs: Sequence[tuple[Level, Level]] = pairs) -> list[float]:
        figure = attrgetter(field)
        return _known(ratio(figure(own), figure(first)) for own, first in pairs)

    alike = [pair for pair in pairs if len({level.gaps_are_of_tokens for level in pair}) == 1]
    speeds, first_token = ratios("tokens_per_second"), median(ratios("first_token.p50"))
    gaps = (median(ratios(field, alike)) for field in ("gap.p50", "gap.p95"))
    lowest, highest = min(speeds, default=None), max(speeds, default=None)
    return Comparison(clients, server, median(speeds), lowest, highest, first_token, *gaps)


def _prefix_effect(server: int, records: Sequence[PrefixRecord]) -> PrefixEffect:
    cold = [record.cold for record in records if record.cold is not None and record.cold.outcome is AnswerOutcome.OK]
    warm = [answer for record in records for answer in record.warm if answer.outcome is AnswerOutcome.OK]
    cold_s = median(_known(answer.first_token_s for answer in cold))
    warm_s = median(_known(answer.first_token_s for answer in warm))
    usages = [answer.usage for answer in warm if answer.usage is not None]
    prompt, cached = median([usage.prompt for usage in usages]), median([usage.cached for usage in usages])
    return PrefixEffect(server, cold_s, warm_s, ratio(warm_s, cold_s), prompt, cached)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
