"""What is simulated: the models with their step prices, the load, and every assumption in words."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.bundle.specs import SPARE_SLOTS
from engine.config import EngineConfig
from tools.simulate.baselines import Fusion, Serial
from tools.simulate.clock import Policy, drive
from tools.simulate.continuous import Continuous
from tools.simulate.figures import Figures, figures
from tools.simulate.host_times import HostTimes
from tools.simulate.load import SimulatedLoad, starts
from tools.simulate.prices import Prices, fixed_table, lay_out, parse_times
from tools.simulate.published import HUB, ask_hub, find, price
from tools.simulate.slots import slot_policy, slot_prices

SERIAL, FUSION, FUSED, HEXSERVE = "serial", "1+1", "fused", "hexserve"


@dataclass(frozen=True, slots=True)
class Device:
    """One model on one device: a name, where its prices are from, and the prices."""

    name: str
    source: str
    prices: Prices


@dataclass(frozen=True, slots=True)
class Scenario:
    """One number of clients after the other, each under every policy. Lengths in tokens, rate in clients a second."""

    clients: tuple[int, ...]
    requests: int
    prompt: int
    output: int
    rate: float
    seed: int
    host: HostTimes
    max_gap_ms: float
    reserve_tokens: int
    slots: tuple[int, ...] = ()

    def load(self, clients: int) -> SimulatedLoad:
        """The load of so many clients."""
        return SimulatedLoad(starts(clients, self.rate, self.seed), self.requests, self.prompt, self.output)


def published_devices(
    model: str, device: str, rows: tuple[int, ...], context: int | None, same_context: bool, kv_bytes: int
) -> list[Device]:
    """Models of the published table; without rows or context what fits it. ValueError names the option at fault."""
    found = []
    for each in (ask_hub(model, device, kv_bytes),) if model.startswith(HUB) else find(model, device):
        counts = rows or (1, 32, 128)
        slots = each.context if context is None else context
        if max(counts) < 2:
            raise ValueError(f"--rows must name a variant of 2 rows or more, not only {max(counts)}")
        if slots > each.context:
            raise ValueError(f"--context must be at most {each.context}, as published, not {slots}")
        if slots <= max(counts):
            raise ValueError(f"--context must be more than {max(counts)}, the most rows, not {slots}")
        times = price(each, lay_out(counts, slots, same_context))
        prices = Prices(fixed_table(times), times, each.kv_bytes)
        found.append(Device(f"{each.model} on {each.device}", f"published by {each.source}", prices))
    return found


def measured_device(path: Path, kv_bytes: int) -> Device:
    """A table of the user's own. ValueError names the file and what is wrong with it."""
    try:
        times = parse_times(path.read_bytes())
    except OSError as error:
        raise ValueError(f"--costs {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"--costs {path}: {error}") from None
    return Device(path.name, "your file", Prices(fixed_table(times), times, kv_bytes))


def check_lengths(scenario: Scenario, devices: list[Device]) -> None:
    """ValueError when a request cannot fit the variants of a device."""
    needed = scenario.prompt + scenario.output
    for device in devices:
        for slots in scenario.slots:
            slot_prices(device.prices, slots)
        room = device.prices.tokens_per_request - SPARE_SLOTS * bool(scenario.slots)
        if needed > room:
            raise ValueError(
                f"--prompt {scenario.prompt} and --output {scenario.output} make {needed} tokens; "
                f"the variants of {device.name} hold at most {room}"
            )


def play(scenario: Scenario, device: Device, clients: int, on_tokens: Callable[[int], None]) -> list[Figures]:
    """Every policy under the same load; the first is what the others are compared with."""
    config = EngineConfig("", max_gap_ms=scenario.max_gap_ms, reserve_tokens=scenario.reserve_tokens)
    policies: dict[str, Policy] = {
        SERIAL: Serial(device.prices),
        FUSION: Fusion(device.prices),
        **{f"{FUSED} {slots}": slot_policy(device.prices, slots, config) for slots in scenario.slots},
        HEXSERVE: Continuous(device.prices, config),
    }
    found: list[Figures] = []
    for name, policy in policies.items():
        run = drive(policy, scenario.load(clients), scenario.host, on_tokens)
        found.append(figures(clients, name, run, found[0] if found else None))
    return found


def assumptions(scenario: Scenario, has_published: bool, slot_ms: float = 0.0) -> list[str]:
    """What the figures rest on, a sentence or two each."""
    prices = (
        "A step costs what was published for 128 rows and for 1 row. Between them the cost is taken "
        "as linear in rows, and fewer KV slots cost as much as all. The two times are of different graphs. Nothing was "
        "measured on a device for this, and no rate under concurrency has been published."
        if has_published
        else "A step costs what your file says. A grid measured for free shapes is taken as so many fixed variants."
    )
    slots = (
        f"{FUSED} D: hexserve's scheduler over fused graphs of D decode slots, which requests take in turns. Every "
        "running request has a cache of all slots; each cache of a graph beyond the first costs "
        f"{_cost_text(slot_ms)}.",
    )
    return [
        prices,
        f"Every step costs more on the host: {scenario.host.text()} ({scenario.host.source}), linear between. "
        "Published decode rates hold some host work already, so it may be counted twice.",
        "serial: one request after the other, its prompt in chunks of most rows (the rest in the fewest that hold it), "
        "then one row for each token; changing the variant costs nothing. This is how Genie works.",
        f"{FUSION}: one chunk of one prompt and one decode row a step, the row belongs to one request until it ends; "
        f"its second cache costs {_cost_text(slot_ms)} and its copies nothing. This is mllm's scheduler.",
        *(slots if scenario.slots else ()),
        "hexserve: its own scheduler and settings. Re-laying a cache for another width and moving its KV blocks to "
        "memory and back cost 1 ms per 4 MB; writing new keys and values is part of the host's time.",
        "No prompt shares its beginning with another, nothing is guessed, every answer has its full length.",
    ]


def _cost_text(slot_ms: float) -> str:
    return f"{slot_ms:g} ms" if slot_ms else "nothing"
