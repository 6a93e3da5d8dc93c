"""One run of `hexserve bench`: measure, print every turn, then report; also after Ctrl-C."""

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from server.commands.bench.load import BenchLoad, BenchTarget, Book, TurnRecord, measure
from server.commands.bench.measured import AnswerOutcome, MeasuredAnswer
from server.commands.bench.prompts import PromptSource, WordLength, user, words
from server.commands.bench.report import print_report, turn_line, write_json
from server.commands.exit_codes import FAILED, INTERRUPTED, refuse
from server.commands.http_client import Unreachable
from server.commands.own_server import ServerFailed, running_server

SHORT_WORDS, LONG_WORDS = 8, 48
IGNORE_EOS = {"ignore_eos": True}


async def prepare(
    targets: Sequence[BenchTarget], wants_full_length: bool, vocabulary: int = 0
) -> tuple[WordLength, bool]:
    """Find models, warm every server up and measure words against prompt tokens on the first one.

    Returns that length and whether answers run to max_tokens. They do so only if every server takes ignore_eos.
    vocabulary: when it is not 0, prompts are token ids below it. Raises Unreachable.
    """
    lengths = []
    for target in targets:
        await target.find_model()
        lengths.append(await _length(target, vocabulary))
    runs_full = wants_full_length and all([await _takes_ignore_eos(target, vocabulary) for target in targets])
    for target in targets:
        target.extra = IGNORE_EOS if runs_full else {}
    return lengths[0], runs_full


async def _length(target: BenchTarget, vocabulary: int) -> WordLength:
    measured = []
    for count in (SHORT_WORDS, LONG_WORDS):
        answer = await _try(target, count, vocabulary)
        if answer.outcome is not AnswerOutcome.OK or answer.usage is None:
            kind = "a prompt of token ids" if vocabulary else "a chat"
            raise Unreachable(f"{target.address} cannot answer {kind}: {answer.error}")
        measured.append((count, answer.usage.prompt))
    return WordLength.fitted(measured[0], measured[1])


async def _takes_ignore_eos(target: BenchTarget, vocabulary: int) -> bool:
    target.extra = IGNORE_EOS
    answer = await _try(target, SHORT_WORDS, vocabulary)
    return answer.outcome is AnswerOutcome.OK


async def _try(target: BenchTarget, count: int, vocabulary: int) -> MeasuredAnswer:
    draw = random.Random(count)
    ids = tuple(draw.choices(range(vocabulary), k=count)) if vocabulary else None
    return await target.answer(ids or [user(words(draw, count))], 2)


def targets_at(addresses: Sequence[str], api_key: str, model: str, timeout_s: float) -> list[BenchTarget]:
    """Servers called A, B, ... UnusableAddress."""
    names = (chr(ord("A") + number) if number < 26 else f"S{number}" for number in range(len(addresses)))
    return [BenchTarget(name, url, api_key, model, timeout_s) for name, url in zip(names, addresses, strict=True)]


@dataclass(frozen=True, slots=True)
class BenchSession:
    """One run: prompts and load for the servers at `addresses`, or for one of our own on `bundle` where there are none.

    wants_full_length: answers run to max_tokens if every server can.
    """

    addresses: Sequence[str]
    bundle: str
    open_targets: Callable[[Sequence[str]], Sequence[BenchTarget]]
    prompts: PromptSource
    load: BenchLoad
    wants_full_length: bool
    json_file: Path | None
    console: Console = field(default_factory=Console)

    def run(self) -> int:
        """Measure and report; the exit code: 0, 1 when a request or a server failed, 130 after Ctrl-C."""
        try:
            with contextlib.ExitStack() as stack:
                addresses = self.addresses
                if not addresses:
                    self.console.print(f"Starting a server on {self.bundle} ...", markup=False)
                    addresses = [stack.enter_context(running_server(self.bundle))]
                return self._run(self.open_targets(addresses))
        except (Unreachable, ServerFailed) as error:
            refuse(error, FAILED)

    def _run(self, targets: Sequence[BenchTarget]) -> int:
        book = Book()
        was_stopped = False
        try:
            asyncio.run(self._measure(targets, book))
        except KeyboardInterrupt:
            was_stopped = True
            self.console.print("Stopped; this is what was measured:")
        print_report(self.console, targets, book)
        if self.json_file is not None:
            self._write(self.json_file, targets, book)
        has_failures = any(a.outcome is AnswerOutcome.FAILED for record in book.turns for a in record.answers)
        return INTERRUPTED if was_stopped else FAILED if has_failures else 0

    def _write(self, json_file: Path, targets: Sequence[BenchTarget], book: Book) -> None:
        try:
            write_json(json_file, targets, self.load, self.prompts.seed, book)
        except OSError as error:
            refuse(f"--json {json_file} cannot be written: {error.strerror or error}")
        self.console.print(f"Written to {json_file}", markup=False, highlight=False)

    async def _measure(self, targets: Sequence[BenchTarget], book: Book) -> None:
        def tell(record: TurnRecord) -> None:
            self.console.print(turn_line(record, targets), markup=False, highlight=False, style="dim")

        try:
            length, runs_full = await prepare(targets, self.wants_full_length, self.prompts.vocabulary)
            ends = "all of them" if runs_full else "or fewer, as the model ends"
            self.console.print(
                f"{self.load.requests_per_client} requests per client, {self.load.max_tokens} tokens each ({ends}), "
                f"{self.load.rounds} rounds, seed {self.prompts.seed}",
                highlight=False,
            )
            sized = dataclasses.replace(self.prompts, length=length)
            await measure(targets, sized, self.load, book, tell)
        finally:
            for target in targets:
                await target.close()
