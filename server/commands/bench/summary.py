"""From what was measured to the figures of the report. Pure; times in seconds, rates per second."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from server.commands.bench.load import PrefixRecord, TurnRecord
from server.commands.bench.measured import (
    AnswerOutcome,
    Distribution,
    MeasuredAnswer,
    ScrapedCounters,
    distribution,
    median,
    ratio,
    total,
)


@dataclass(frozen=True, slots=True)
class Level:
    """One server under one number of clients, over all its turns.

    gap: between arrivals of visible text. per_token: mean time per token of each answer after its first token.
    chunks_per_token: below 1 when the server sends several tokens at once, so that gaps are longer than tokens.
    """

    clients: int
    server: int
    tokens_per_second: float | None
    first_token: Distribution
    gap: Distribution
    per_token: Distribution
    outcomes: dict[str, int]
    prompt_tokens: float | None
    cached_tokens: int
    output_tokens: int
    chunks_per_token: float | None
    own_cpu: float | None
    seconds: float
    counters: ScrapedCounters | None
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """A later server against the first, per client count: ratios of the same round, and their extremes."""

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


def levels(records: Sequence[TurnRecord]) -> list[Level]:
    """One per client count and server, in the order they were first played."""
    grouped: dict[tuple[int, int], list[TurnRecord]] = {}
    for record in records:
        grouped.setdefault((record.turn.clients, record.turn.server), []).append(record)
    return [_level(clients, server, turns) for (clients, server), turns in grouped.items()]


def _level(clients: int, server: int, records: Sequence[TurnRecord]) -> Level:
    answers = [answer for record in records for answer in record.answers]
    good = [answer for answer in answers if answer.outcome is AnswerOutcome.OK]
    usages = [answer.usage for answer in good if answer.usage is not None]
    output = sum(usage.completion for usage in usages)
    arrivals = sum(len(answer.gaps_s) + (answer.first_token_s is not None) for answer in good)
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
        chunks_per_token=ratio(arrivals, output),
        own_cpu=ratio(sum(record.own_cpu_s for record in records), seconds),
        seconds=seconds,
        counters=total([record.counters for record in records if record.counters is not None]),
        is_complete=all(record.is_complete for record in records),
    )


def comparisons(records: Sequence[TurnRecord]) -> list[Comparison]:
    """Every server but the first against the first, from rounds that both finished without a failure."""
    finished = {
        (record.turn.clients, record.turn.server, record.turn.round): _level(
            record.turn.clients, record.turn.server, [record]
        )
        for record in records
        if record.is_complete and all(answer.outcome is not AnswerOutcome.FAILED for answer in record.answers)
    }
    found: dict[tuple[int, int], list[tuple[Level, Level]]] = {}
    for (clients, server, number), level in finished.items():
        first = finished.get((clients, 0, number))
        if server > 0 and first is not None:
            found.setdefault((clients, server), []).append((level, first))
    return [_comparison(clients, server, pairs) for (clients, server), pairs in found.items()]


def _comparison(clients: int, server: int, pairs: Sequence[tuple[Level, Level]]) -> Comparison:
    speeds = _known([ratio(own.tokens_per_second, first.tokens_per_second) for own, first in pairs])
    return Comparison(
        clients=clients,
        server=server,
        tokens_per_second=median(speeds),
        lowest=min(speeds, default=None),
        highest=max(speeds, default=None),
        first_token_p50=median(_known([ratio(own.first_token.p50, first.first_token.p50) for own, first in pairs])),
        gap_p50=median(_known([ratio(own.gap.p50, first.gap.p50) for own, first in pairs])),
        gap_p95=median(_known([ratio(own.gap.p95, first.gap.p95) for own, first in pairs])),
    )


def prefix_effects(records: Sequence[PrefixRecord]) -> list[PrefixEffect]:
    return [
        _prefix_effect(server, [record for record in records if record.server == server])
        for server in sorted({record.server for record in records})
    ]


def _prefix_effect(server: int, records: Sequence[PrefixRecord]) -> PrefixEffect:
    cold = [record.cold for record in records if record.cold is not None and record.cold.outcome is AnswerOutcome.OK]
    warm = [answer for record in records for answer in record.warm if answer.outcome is AnswerOutcome.OK]
    cold_s = median(_known([answer.first_token_s for answer in cold]))
    warm_s = median(_known([answer.first_token_s for answer in warm]))
    return PrefixEffect(
        server=server,
        cold_s=cold_s,
        warm_s=warm_s,
        warm_over_cold=ratio(warm_s, cold_s),
        prompt_tokens=median([answer.usage.prompt for answer in warm if answer.usage is not None]),
        cached_tokens=median([answer.usage.cached for answer in warm if answer.usage is not None]),
    )


def errors(answers: Sequence[MeasuredAnswer]) -> list[tuple[str, int]]:
    """The most frequent messages of requests that failed, with their counts."""
    failed = Counter(answer.error for answer in answers if answer.outcome is not AnswerOutcome.OK)
    return failed.most_common(5)


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]
