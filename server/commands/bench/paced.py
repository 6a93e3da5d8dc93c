"""`hexserve bench --paced`: what the host adds to passes whose time is known, by number of clients and way of sampling.

A paced server sleeps for the published time of each pass, so whatever the load takes longer is the host's.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from engine.simulate.published import Published, known, named
from server.commands.bench.answers import AnswerOutcome
from server.commands.bench.prepare import IGNORE_EOS, prepare
from server.commands.bench.prompts import PromptSource
from server.commands.bench.rounds import BenchLoad, Book, TurnRecord, measure
from server.commands.bench.scrape import ScrapedCounters
from server.commands.bench.summary import errors
from server.commands.bench.target import BenchTarget
from server.commands.exit_codes import FAILED, INTERRUPTED, refuse
from server.commands.http_client.address import Unreachable
from server.commands.own_server import ServerFailed, free_port, running_server, serve_command

# Long enough that no answer ends before max_tokens, with keys, strings of a bounded length, numbers and choices.
PERSON: Mapping[str, Any] = MappingProxyType(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "role": {"enum": ["reader", "writer", "admin"]},
        },
        "required": ["name", "age", "role"],
        "additionalProperties": False,
    }
)
SCHEMA: Mapping[str, Any] = MappingProxyType({"type": "array", "items": dict(PERSON), "minItems": 1000})
FORMAT = {"type": "json_schema", "json_schema": {"name": "people", "schema": dict(SCHEMA)}}


WARM_TOKENS = 8


@dataclass(frozen=True, slots=True)
class PacedCase:
    """A number of clients and the fields that each of their requests has beside its length."""

    title: str
    clients: int
    fields: Mapping[str, Any]


CASES = (
    PacedCase("greedy", 1, {}),
    PacedCase("greedy", 16, {}),
    PacedCase("temp 0.7, top-p 0.9", 16, {"temperature": 0.7, "top_p": 0.9}),
    PacedCase("temp 0.7, top-k 40", 16, {"temperature": 0.7, "top_k": 40}),
    PacedCase("json_schema", 16, {"response_format": FORMAT}),
)


@dataclass(frozen=True, slots=True)
class HostFigures:
    """What a case came to. paced_s: the published times of its passes; host_ms: what the rest is for each pass."""

    case: str
    clients: int
    passes: int
    rows_per_pass: float
    paced_s: float
    wall_s: float

    @property
    def share(self) -> float:
        """(passes x pass time) / wall: 1 means that the host costs nothing."""
        return self.paced_s / self.wall_s

    @property
    def host_ms(self) -> float:
        """Milliseconds of a pass that the device waits for the host."""
        return 1000.0 * (self.wall_s - self.paced_s) / self.passes


def host_figures(case: PacedCase, record: TurnRecord, published: Published) -> HostFigures | None:
    """None when the turn has no counters, or ran no pass."""
    counters = record.counters
    if counters is None or not counters.passes:
        return None
    return HostFigures(
        case.title,
        case.clients,
        int(counters.passes),
        counters.rows_used / counters.passes,
        paced_seconds(counters, published),
        record.seconds,
    )


def paced_seconds(counters: ScrapedCounters, published: Published) -> float:
    """Times are linear in rows, so the passes and rows counted say what all of them took."""
    slope = (published.rows_ms - published.one_row_ms) / (published.rows - 1)
    return (counters.passes * published.one_row_ms + (counters.rows_run - counters.passes) * slope) / 1000.0


def run_paced(name: str, prompts: PromptSource, load: BenchLoad, timeout_s: float, json_file: Path | None) -> int:
    """Measure every case; the exit code: 0, 1 when a request or the server failed, 130 after Ctrl-C."""
    try:
        published = named(name)
    except ValueError:
        refuse(f"--paced '{name}' has no published pass times; known are {', '.join(known())}")
    if not any(case.clients in load.clients for case in CASES):
        counts = sorted({case.clients for case in CASES})
        refuse(f"--clients: --paced has cases of {' and '.join(map(str, counts))} clients")
    console = Console()
    port = free_port()
    command = [*serve_command("demo", port), "--paced", name]
    try:
        with running_server("demo", command, port) as address:
            session = PacedSession(console, published, prompts, load)
            return session.run(BenchTarget("A", address, "", "", timeout_s), json_file)
    except (Unreachable, ServerFailed) as error:
        refuse(error, FAILED)


@dataclass(frozen=True, slots=True)
class PacedSession:
    """One run over all cases."""

    console: Console
    published: Published
    prompts: PromptSource
    load: BenchLoad

    def run(self, target: BenchTarget, json_file: Path | None) -> int:
        """The exit code. Raises Unreachable."""
        book, figures = Book(), list[HostFigures]()
        was_stopped = False
        try:
            asyncio.run(self._measure(target, book, figures))
        except KeyboardInterrupt:
            was_stopped = True
        self.console.print(host_table(self.published, figures))
        for message, count in errors([answer for record in book.turns for answer in record.answers]):
            self.console.print(f"{count} x {message}", style="red", markup=False, highlight=False)
        if json_file is not None:
            self._write(json_file, figures)
        failed = any(a.outcome is AnswerOutcome.FAILED for record in book.turns for a in record.answers)
        return INTERRUPTED if was_stopped else FAILED if failed or not figures else 0

    async def _measure(self, target: BenchTarget, book: Book, figures: list[HostFigures]) -> None:
        try:
            length, _ = await prepare([target], True)
            sized = PromptSource(self.prompts.seed, self.prompts.prompt_tokens, length, self.prompts.texts)
            for case in (case for case in CASES if case.clients in self.load.clients):
                target.extra = {**IGNORE_EOS, **case.fields}
                await target.answer(sized.prompt("warm", case.title), WARM_TOKENS)  # a first schema loads its tokenizer
                load = BenchLoad((case.clients,), self.load.requests_per_client, self.load.max_tokens, 1)
                await measure([target], sized, load, book, lambda record: None)
                found = host_figures(case, book.turns[-1], self.published)
                if found is not None:
                    figures.append(found)
                    said = f"{case.clients} clients, {case.title}: {found.share:.1%}, {found.host_ms:.2f} ms a pass"
                    self.console.print(said, style="dim", highlight=False)
        finally:
            await target.close()

    def _write(self, path: Path, figures: Sequence[HostFigures]) -> None:
        document = {
            "paced": self.published.title,
            "host": [asdict(each) | {"share": each.share, "host_ms": each.host_ms} for each in figures],
        }
        try:
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            refuse(f"--json {path} cannot be written: {error.strerror or error}")
        self.console.print(f"Written to {path}", markup=False, highlight=False)


def host_table(published: Published, figures: Sequence[HostFigures]) -> Table:
    """One line for each case."""
    title = f"The host beside passes of {published.title} (published by {published.source})"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in (
        "clients",
        "sampling",
        "passes",
        "rows",
        "times\ntime s",
        "wall s",
        "share",
        "host\nms",
    ):
        table.add_column(heading, justify="left" if heading == "sampling" else "right", no_wrap=True)
    for each in figures:
        table.add_row(
            str(each.clients),
            each.case,
            str(each.passes),
            f"{each.rows_per_pass:.1f}",
            f"{each.paced_s:.2f}",
            f"{each.wall_s:.2f}",
            f"{each.share:.1%}",
            f"{each.host_ms:.2f}",
        )
    return table
