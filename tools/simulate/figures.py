"""From simulated runs to the figures of the report. Pure; times in simulated seconds."""

from dataclasses import dataclass

from server.commands.bench.measured import distribution, percentile, ratio
from tools.simulate.clock import Run


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy under one number of clients. of_serial: output rate over that of the first policy.

    Gaps are between tokens of one stream, None when no answer has two; the longest also in steps. preemptions: columns
    that had to be given back.
    """

    clients: int
    policy: str
    tokens: int
    seconds: float
    tokens_per_second: float
    of_serial: float | None
    first_token_mean_s: float
    first_token_p95_s: float
    gap_p99_s: float | None
    gap_longest_s: float | None
    steps: int
    rows_per_step: float
    tokens_per_step: float
    preemptions: int
    gap_longest_steps: int | None = None


def figures(clients: int, policy: str, run: Run, serial: Figures | None) -> Figures:
    """The figures of a run that has ended; `serial` is what it is compared with, None for the first one."""
    waits = sorted(answer.first_token_s for answer in run.answers.values())
    gaps = distribution([gap for answer in run.answers.values() for gap in answer.gaps_s])
    tokens = sum(len(answer.tokens) for answer in run.answers.values())
    rate = tokens / run.seconds
    return Figures(
        clients=clients,
        policy=policy,
        tokens=tokens,
        seconds=run.seconds,
        tokens_per_second=rate,
        of_serial=ratio(rate, serial.tokens_per_second) if serial is not None else 1.0,
        first_token_mean_s=distribution(waits).mean,
        first_token_p95_s=percentile(waits, 95),
        gap_p99_s=gaps.p99 if gaps.count else None,
        gap_longest_s=gaps.highest if gaps.count else None,
        steps=run.steps,
        rows_per_step=run.rows_used / run.steps,
        tokens_per_step=tokens / run.steps,
        preemptions=run.preemptions,
        gap_longest_steps=max((gap for answer in run.answers.values() for gap in answer.gaps_in_steps), default=None),
    )
