"""`hexserve bench --profile`: where a step of the engine takes its time, for each number of clients."""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from server.commands.bench.prepare import prepare
from server.commands.bench.prompts import PromptSource
from server.commands.bench.rounds import BenchLoad, Book, measure
from server.commands.bench.session import Servers
from server.commands.bench.target import BenchTarget
from server.commands.exit_codes import FAILED, INTERRUPTED, refuse
from server.commands.http_client.address import Unreachable
from server.commands.own_server import ServerFailed, running_server

PART = "graph: "
STAGES = ("plan", "pack", "pages", "graph", "sample", "commit", "keep", "events", "send")


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Seconds by stage under a number of clients, over so many passes."""

    clients: int
    passes: float
    seconds: Mapping[str, float]

    @property
    def total(self) -> float:
        """Seconds of all stages; parts of the graph are in it once."""
        return sum(seconds for stage, seconds in self.seconds.items() if not stage.startswith(PART))


def run_profile(servers: Servers, prompts: PromptSource, load: BenchLoad, is_markdown: bool) -> int:
    """Load a server of our own and print the table; the exit code as of `run_bench`."""
    console = Console()
    try:
        with running_server(servers.bundle) as address:
            (target,) = servers.targets([address])
            profiles = asyncio.run(_profiles(target, prompts, load))
    except (Unreachable, ServerFailed) as error:
        refuse(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    if is_markdown:
        console.print(markdown(profiles), markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(_table(profiles))
    return 0


async def _profiles(target: BenchTarget, prompts: PromptSource, load: BenchLoad) -> list[StepProfile]:
    found = []
    try:
        length, _ = await prepare([target], True, prompts.vocabulary)
        sized = dataclasses.replace(prompts, length=length)
        for clients in load.clients:
            book = Book()
            before = await target.stages()
            await measure([target], sized, dataclasses.replace(load, clients=(clients,)), book, lambda _: None)
            after = await target.stages()
            passes = sum(record.counters.passes for record in book.turns if record.counters is not None)
            spent = {stage: seconds - before.get(stage, 0.0) for stage, seconds in after.items()}
            found.append(StepProfile(clients, passes, spent))
    finally:
        await target.close()
    return found


def rows(profiles: Sequence[StepProfile]) -> list[list[str]]:
    """One row for each stage, the parts of the graph below it, and the whole: milliseconds a pass and its share."""
    parts = dict.fromkeys(stage for profile in profiles for stage in profile.seconds if stage.startswith(PART))
    stages = [name for stage in STAGES for name in (stage, *(parts if stage == "graph" else ()))]
    made = [[stage, *(_cell(each, each.seconds.get(stage, 0.0)) for each in profiles)] for stage in stages]
    return [*made, ["whole step", *(_cell(each, each.total) for each in profiles)]]


def markdown(profiles: Sequence[StepProfile]) -> str:
    """The table for a page of the documentation."""
    titles = ["ms a pass", *(_title(profile) for profile in profiles)]
    lines = [titles, ["---"] * len(titles), *rows(profiles)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _table(profiles: Sequence[StepProfile]) -> Table:
    table = Table(title="Milliseconds of an engine step, by stage", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("stage", no_wrap=True)
    for profile in profiles:
        table.add_column(_title(profile), justify="right", no_wrap=True)
    for row in rows(profiles):
        table.add_row(*row)
    return table


def _title(profile: StepProfile) -> str:
    return f"{profile.clients} client{'s' * (profile.clients > 1)}"


def _cell(profile: StepProfile, seconds: float) -> str:
    if not profile.passes or not profile.total:
        return "-"
    return f"{1000 * seconds / profile.passes:.2f} ({seconds / profile.total:.1%})"
