"""`python -m tools.step_profile`: where the steps of a server take their time, stage by stage, as Markdown.

Starts a server on --bundle, loads it as `hexserve bench` does and reads the stages of its /metrics. Of a folder it also
says how many bytes of weights the steps read, and how many a second while graphs ran.
"""

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from prometheus_client.parser import text_string_to_metric_families

from engine.bundle.manifest import GraphKind, load_manifest
from engine.bundle.segments import LINEAR_DATA
from server.commands.bench.load import BenchLoad, BenchTarget, Book, measure
from server.commands.bench.measured import PromptSource
from server.commands.bench.session import prepare, targets_at
from server.commands.exit_codes import FAILED, INTERRUPTED, whole_numbers
from server.commands.http_client import Unreachable
from server.commands.own_server import ServerFailed, running_server

PART = "graph: "
STAGE_SECONDS = "hexserve:stage_seconds_total"
EXPERTS_READ = "hexserve:experts_read_total"
READING = (f"{PART}linear", f"{PART}head")  # where weights are read
TIMEOUT_S = 300.0
EXPERTS = "_experts_"  # in the names of what all experts of a layer have
LENGTH, LOCATION = "length", "location"
STAGES = ("plan", "pack", "blocks", "graph", "sample", "commit", "keep", "events", "send")


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Seconds by stage under a number of clients, over so many steps. weights: bytes that these read, 0 = not known."""

    clients: int
    steps: float
    seconds: Mapping[str, float]
    weights: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of all stages; parts of the graph are in it once."""
        return sum(seconds for stage, seconds in self.seconds.items() if not stage.startswith(PART))

    @property
    def reading(self) -> float:
        """Seconds in which weights are read."""
        return sum(self.seconds.get(part, 0.0) for part in READING)


@dataclass(frozen=True, slots=True)
class StepWeights:
    """matrices: bytes that every step reads. expert: bytes of one expert of one layer, 0 = there are none."""

    matrices: int
    expert: float = 0.0

    def read(self, steps: float, experts: float) -> float:
        """Bytes of so many steps, over all of which so many different experts were read."""
        return self.matrices * steps + self.expert * experts


def step_weights(folder: Path) -> StepWeights:
    """Of a segmented bundle, whose prompts are computed by then. BundleError when it is none."""
    manifest = load_manifest(folder)
    matrices = experts = 0
    for graph in manifest.graphs:
        if graph.kind is GraphKind.LINEAR:
            for name, size in _stored(folder / graph.file):
                matrices, experts = (matrices, experts + size) if EXPERTS in name else (matrices + size, experts)
    spec = manifest.model.experts
    return StepWeights(matrices, experts / (len(spec.layers) * spec.count) if spec else 0.0)


def _stored(graph: Path) -> list[tuple[str, int]]:
    """Name and bytes of each tensor of a graph's matrices."""
    found = []
    for tensor in onnx.load(graph, load_external_data=False).graph.initializer:
        told = {entry.key: entry.value for entry in tensor.external_data}
        if told.get(LOCATION) == LINEAR_DATA:
            found.append((tensor.name, int(told[LENGTH])))
    return found


def main() -> int:
    """Load a server of our own and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.step_profile", description=__doc__)
    parser.add_argument("--bundle", default="demo", help="what to start a server on")
    parser.add_argument("--clients", default="1,4,16", help="numbers of clients at once")
    parser.add_argument("--requests-per-client", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    load = BenchLoad(whole_numbers(options.clients, "--clients"), options.requests_per_client, options.max_tokens, 1)
    try:
        with running_server(options.bundle) as address:
            folder = Path(options.bundle)
            weights = step_weights(folder) if folder.is_dir() else None
            profiles = asyncio.run(_profiles(address, PromptSource(0, options.prompt_tokens), load, weights))
    except (Unreachable, ServerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    print(markdown(profiles))
    return 0


async def _profiles(
    address: str, prompts: PromptSource, load: BenchLoad, weights: StepWeights | None
) -> list[StepProfile]:
    [target] = targets_at([address], "", "", TIMEOUT_S)
    found = []
    try:
        length, _ = await prepare([target], True, prompts.vocabulary)
        sized = dataclasses.replace(prompts, length=length)
        for clients in load.clients:
            book = Book()
            before, experts = await _read(target)
            await measure([target], sized, dataclasses.replace(load, clients=(clients,)), book, lambda _: None)
            after, experts_then = await _read(target)
            steps = sum(record.counters.steps for record in book.turns if record.counters is not None)
            spent = {stage: seconds - before.get(stage, 0.0) for stage, seconds in after.items()}
            read = weights.read(steps, experts_then - experts) if weights else 0.0
            found.append(StepProfile(clients, steps, spent, read))
    finally:
        await target.close()
    return found


def rows(profiles: Sequence[StepProfile]) -> list[list[str]]:
    """One row for each stage, the parts of the graph below it, and the whole: milliseconds a step and its share; then
    the weights that were read, where they are known."""
    parts = dict.fromkeys(stage for profile in profiles for stage in profile.seconds if stage.startswith(PART))
    stages = [name for stage in STAGES for name in (stage, *(parts if stage == "graph" else ()))]
    made = [[stage, *(_cell(each, each.seconds.get(stage, 0.0)) for each in profiles)] for stage in stages]
    made.append(["whole step", *(_cell(each, each.total) for each in profiles)])
    if any(profile.weights for profile in profiles):
        made.append(["MB of weights a step", *(f"{each.weights / each.steps / 1e6:.0f}" for each in profiles)])
        made.append(["GB of them a second", *(f"{each.weights / each.reading / 1e9:.1f}" for each in profiles)])
    return made


def markdown(profiles: Sequence[StepProfile]) -> str:
    """The table, for a page of the documentation."""
    titles = ["ms a step", *(_title(profile) for profile in profiles)]
    lines = [titles, ["---"] * len(titles), *rows(profiles)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _title(profile: StepProfile) -> str:
    return f"{profile.clients} client{'s' * (profile.clients > 1)}"


def _cell(profile: StepProfile, seconds: float) -> str:
    if not profile.steps or not profile.total:
        return "-"
    return f"{1000 * seconds / profile.steps:.2f} ({seconds / profile.total:.1%})"


async def _read(target: BenchTarget) -> tuple[dict[str, float], float]:
    return read_metrics(await target.text_at("metrics") or "")


def read_metrics(text: str) -> tuple[dict[str, float], float]:
    """Seconds by stage of the engine's steps and how many experts they read, of a Prometheus exposition."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    stages = {sample.labels["stage"]: sample.value for sample in samples if sample.name == STAGE_SECONDS}
    return stages, sum(sample.value for sample in samples if sample.name == EXPERTS_READ)


if __name__ == "__main__":
    sys.exit(main())
