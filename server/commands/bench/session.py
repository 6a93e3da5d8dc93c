"""One run of `hexserve bench`: measure, print every turn, then report; also after Ctrl-C."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from server.commands.bench.answers import AnswerOutcome
from server.commands.bench.prepare import prepare
from server.commands.bench.prompts import PromptSource
from server.commands.bench.report import print_report, turn_line, write_json
from server.commands.bench.rounds import BenchLoad, Book, TurnRecord, measure
from server.commands.bench.target import BenchTarget
from server.commands.exit_codes import FAILED, INTERRUPTED, refuse
from server.commands.http_client.address import Unreachable
from server.commands.own_server import ServerFailed, running_server


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers to measure, with key and model. Without addresses a server of our own is started on `bundle`."""

    addresses: Sequence[str]
    bundle: str
    api_key: str
    model: str
    timeout_s: float

    def targets(self, addresses: Sequence[str]) -> list[BenchTarget]:
        """One target for each address."""
        return [
            BenchTarget(_name(number), address, self.api_key, self.model, self.timeout_s)
            for number, address in enumerate(addresses)
        ]


def run_bench(
    servers: Servers, prompts: PromptSource, load: BenchLoad, wants_full_length: bool, json_file: Path | None
) -> int:
    """Measure and report; the exit code: 0, 1 when a request or a server failed, 130 after Ctrl-C."""
    console = Console()
    try:
        with contextlib.ExitStack() as stack:
            addresses = servers.addresses
            if not addresses:
                console.print(f"Starting a server on {servers.bundle} ...", markup=False)
                addresses = [stack.enter_context(running_server(servers.bundle))]
            session = BenchSession(console, servers.targets(addresses), prompts, load, wants_full_length)
            return session.run(json_file)
    except (Unreachable, ServerFailed) as error:
        refuse(error, FAILED)


def _name(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"S{number}"


@dataclass(frozen=True, slots=True)
class BenchSession:
    """The servers, load and prompts of one run. `wants_full_length`: answers run to max_tokens if every server can."""

    console: Console
    targets: Sequence[BenchTarget]
    prompts: PromptSource
    load: BenchLoad
    wants_full_length: bool

    def run(self, json_file: Path | None) -> int:
        """The exit code: 0, 1 when a request failed, 130 after Ctrl-C. Raises Unreachable."""
        book = Book()
        was_stopped = False
        try:
            asyncio.run(self._measure(book))
        except KeyboardInterrupt:
            was_stopped = True
            self.console.print("Stopped; this is what was measured:")
        print_report(self.console, self.targets, book)
        if json_file is not None:
            self._write(json_file, book)
            self.console.print(f"Written to {json_file}", markup=False, highlight=False)
        has_failures = any(a.outcome is AnswerOutcome.FAILED for record in book.turns for a in record.answers)
        return INTERRUPTED if was_stopped else FAILED if has_failures else 0

    def _write(self, json_file: Path, book: Book) -> None:
        try:
            write_json(json_file, self.targets, self.load, self.prompts.seed, book)
        except OSError as error:
            refuse(f"--json {json_file} cannot be written: {error.strerror or error}")

    async def _measure(self, book: Book) -> None:
        try:
            length, runs_full = await prepare(self.targets, self.wants_full_length, self.prompts.vocabulary)
            ends = "all of them" if runs_full else "or fewer, as the model ends"
            self.console.print(
                f"{self.load.requests_per_client} requests per client, {self.load.max_tokens} tokens each ({ends}), "
                f"{self.load.rounds} rounds, seed {self.prompts.seed}",
                highlight=False,
            )
            sized = dataclasses.replace(self.prompts, length=length)
            await measure(self.targets, sized, self.load, book, self._tell)
        finally:
            for target in self.targets:
                await target.close()

    def _tell(self, record: TurnRecord) -> None:
        self.console.print(turn_line(record, self.targets), markup=False, highlight=False, style="dim")
