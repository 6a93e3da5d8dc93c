"""The simulated clock: requests come, a policy runs steps, tokens get their times. No randomness, no real time."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tools.simulate.host_times import HostTimes
from tools.simulate.load import Job, SimulatedLoad

PATIENCE = 100  # steps that may be planned in vain before a policy counts as stuck


@dataclass(frozen=True, slots=True)
class Step:
    """What one step came to: its time on the device, rows run and useful, and (job, token) of every new token."""

    milliseconds: float
    rows_run: int
    rows_used: int
    tokens: tuple[tuple[int, int], ...]


class Policy(Protocol):
    """Decides steps. Tokens are numbered 0, 1, ... within each job, so that a lost or repeated one shows."""

    def add(self, job: Job, now_s: float) -> None:
        """A request has come."""

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished."""

    @property
    def preemptions(self) -> int:
        """How often a sequence had to give its KV slots back."""

    def step(self) -> Step | None:
        """Run a step; None when only the plan changed."""


@dataclass(slots=True)
class SimulatedAnswer:
    """One request's life, in simulated seconds. steps: the number of the step that each token came out of."""

    job: Job
    asked_s: float
    tokens: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    @property
    def first_token_s(self) -> float:
        """From the request to its first token."""
        return self.times_s[0] - self.asked_s

    @property
    def gaps_s(self) -> list[float]:
        """Between its tokens."""
        return [later - earlier for earlier, later in zip(self.times_s, self.times_s[1:], strict=False)]

    @property
    def gaps_in_steps(self) -> list[int]:
        """The same in steps; 1 is a token in every step."""
        return [later - earlier for earlier, later in zip(self.steps, self.steps[1:], strict=False)]


@dataclass(slots=True)
class Run:
    """Everything that happened under one policy."""

    answers: dict[int, SimulatedAnswer] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0
    rows_run: int = 0
    rows_used: int = 0
    preemptions: int = 0


def drive(
    policy: Policy, load: SimulatedLoad, host: HostTimes, on_tokens: Callable[[int], None] = lambda tokens: None
) -> Run:
    """Play a load to its end. Each step costs its own time and the host's; `on_tokens` gets the new tokens of each."""
    run, now_s, in_vain = Run(), 0.0, 0
    coming = [(start_s, client, 0) for client, start_s in enumerate(load.starts_s)]
    heapq.heapify(coming)
    while coming or policy.has_work:
        if not policy.has_work:
            now_s = max(now_s, coming[0][0])
        while coming and coming[0][0] <= now_s:
            asked_s, client, turn = heapq.heappop(coming)
            job = load.job(client, turn)
            run.answers[job.number] = SimulatedAnswer(job, asked_s)
            policy.add(job, asked_s)
        done = policy.step()
        in_vain = in_vain + 1 if done is None else 0
        assert in_vain < PATIENCE, f"no step after {in_vain} plans at {now_s:.3f} s"
        if done is None:
            continue
        now_s += (done.milliseconds + host.milliseconds(done.rows_used)) / 1000.0
        for job in _take_in(run, done, now_s):
            turn = job.number - job.client * load.requests + 1
            if turn < load.requests:
                heapq.heappush(coming, (now_s, job.client, turn))
        on_tokens(len(done.tokens))
    run.seconds, run.preemptions = now_s, policy.preemptions
    return run


def _take_in(run: Run, done: Step, now_s: float) -> list[Job]:
    """Write down the tokens of a step; the jobs that are finished with it."""
    run.steps += 1
    run.rows_run += done.rows_run
    run.rows_used += done.rows_used
    finished = []
    for number, token in done.tokens:
        answer = run.answers[number]
        answer.tokens.append(token)
        answer.times_s.append(now_s)
        answer.steps.append(run.steps)
        if len(answer.tokens) == answer.job.output:
            finished.append(answer.job)
    return finished
