"""Prices by hand and runs over them."""

from engine.bundle.variant import StepShape
from engine.config import EngineConfig
from tools.simulate.baselines import Fusion, Serial
from tools.simulate.clock import Policy, Run, drive
from tools.simulate.continuous import Continuous
from tools.simulate.host_times import HostTimes
from tools.simulate.load import SimulatedLoad
from tools.simulate.prices import Prices, fixed_table

KV_BYTES = 4000  # a column is moved in a microsecond


def prices(by_rows: dict[int, float], past: int = 896, slot_ms: float = 0.0) -> Prices:
    """Variants of one past."""
    times = {StepShape(rows, past): milliseconds for rows, milliseconds in by_rows.items()}
    return Prices(fixed_table(times), times, KV_BYTES, slot_ms)


def everyone(clients: int, prompt: int, output: int, requests: int = 1) -> SimulatedLoad:
    """All clients at once."""
    return SimulatedLoad((0.0,) * clients, requests, prompt, output)


def policies(table: Prices) -> dict[str, Policy]:
    """One of each."""
    return {
        "serial": Serial(table),
        "fusion": Fusion(table),
        "continuous": Continuous(table, EngineConfig("")),
    }


def play(policy: Policy, load: SimulatedLoad, host_ms: float = 0.0) -> Run:
    """Drive a policy to the end of a load."""
    return drive(policy, load, HostTimes.constant(host_ms))


def rate(run: Run) -> float:
    """Tokens a second."""
    return sum(len(answer.tokens) for answer in run.answers.values()) / run.seconds


def mean_first_token(run: Run) -> float:
    """Seconds."""
    return sum(answer.first_token_s for answer in run.answers.values()) / len(run.answers)


def longest_gap(run: Run) -> float:
    """Seconds."""
    return max(gap for answer in run.answers.values() for gap in answer.gaps_s)
