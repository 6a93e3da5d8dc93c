"""`python -m tools.step_profile`: where the steps of a server take their time, stage by stage, as Markdown.

Starts a server on --bundle, loads it as `hexserve bench` does and reads the stages of its /metrics.
"""

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from server.commands.bench.load import BenchLoad, Book, measure
from server.commands.bench.measured import PromptSource
from server.commands.bench.session import prepare, targets_at
from server.commands.exit_codes import FAILED, INTERRUPTED, whole_numbers
from server.commands.http_client import Unreachable
from server.commands.own_server import ServerFailed, running_server

PART = "graph: "
STAGE_SECONDS = "hexserve:stage_seconds_total"
TIMEOUT_S = 300.0
STAGES = ("plan", "pack", "blocks", "graph", "sample", "commit", "keep", "events", "send")


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Seconds by stage under a number of clients, over so many steps."""

    clients: int
    steps: float
    seconds: Mapping[str, float]

    @property
    def total(self) -> float:
        """Seconds of all stages; parts of the graph are in it once."""
        return sum(seconds for stage, seconds in self.seconds.items() if not stage.startswith(PART))


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
            profiles = asyncio.run(_profiles(address, PromptSource(0, options.prompt_tokens), load))
    except (Unreachable, ServerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    print(markdown(profiles))
    return 0


async def _profiles(address: str, prompts: PromptSource, load: BenchLoad) -> list[StepProfile]:
    [target] = targets_at([address], "", "", TIMEOUT_S)
    found = []
    try:
        length, _ = await prepare([target], True, prompts.vocabulary)
        sized = dataclasses.replace(prompts, length=length)
        for clients in load.clients:
            book = Book()
            before = read_stages(await target.text_at("metrics") or "")
            await measure([target], sized, dataclasses.replace(load, clients=(clients,)), book, lambda _: None)
            after = read_stages(await target.text_at("metrics") or "")
            steps = sum(record.counters.steps for record in book.turns if record.counters is not None)
            spent = {stage: seconds - before.get(stage, 0.0) for stage, seconds in after.items()}
            found.append(StepProfile(clients, steps, spent))
    finally:
        await target.close()
    return found


def rows(profiles: Sequence[StepProfile]) -> list[list[str]]:
    """One row for each stage, the parts of the graph below it, and the whole: milliseconds a step and its share."""
    parts = dict.fromkeys(stage for profile in profiles for stage in profile.seconds if stage.startswith(PART))
    stages = [name for stage in STAGES for name in (stage, *(parts if stage == "graph" else ()))]
    made = [[stage, *(_cell(each, each.seconds.get(stage, 0.0)) for each in profiles)] for stage in stages]
    return [*made, ["whole step", *(_cell(each, each.total) for each in profiles)]]


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


def read_stages(text: str) -> dict[str, float]:
    """Seconds by stage of the engine's steps, of a Prometheus exposition."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.labels["stage"]: sample.value for sample in samples if sample.name == STAGE_SECONDS}


if __name__ == "__main__":
    sys.exit(main())
