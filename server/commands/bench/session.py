"""One run of `hexserve bench`: measure, print every turn, then report as tables, bars and JSON; also after Ctrl-C."""

import asyncio
import contextlib
import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from server.commands.bench import load, measured
from server.commands.bench.load import BenchLoad, BenchTarget, Book, Level, TurnRecord
from server.commands.bench.measured import AnswerOutcome, Distribution, PromptSource, WordLength
from server.commands.exit_codes import FAILED, INTERRUPTED, write_file
from server.commands.http_client import Unreachable
from server.commands.own_server import running_server
from server.commands.tables import table

EIGHTHS = " ▏▎▍▌▋▊▉"
BAR_CELLS = 40
BUSY_GENERATOR = 0.7
ENGINE = ("steps", "useful\nrows/step", "of them\ndecoding", "tokens\nper decode", "rows run\nper step")
SHORT_WORDS, LONG_WORDS = 8, 48
IGNORE_EOS = {"ignore_eos": True}
# What has each chunk tell the tokens so far: as vLLM and SGLang name it, and beside it as llama-server does.
CONTINUOUS_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
COUNTING: tuple[Mapping[str, Any], ...] = ({**CONTINUOUS_USAGE, "timings_per_token": True}, CONTINUOUS_USAGE)


def bar(value: float, highest: float, cells: int, is_plain: bool = False) -> str:
    eighths = round(8 * cells * value / highest) if highest > 0 else 0
    if is_plain:
        return "#" * (eighths // 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def print_report(console: Console, targets: Sequence[BenchTarget], book: Book) -> None:
    found = book.levels()
    if len(targets) > 1:
        for target in targets:
            console.print(f"{target.name} = {target.address} (model {target.model})", highlight=False)
    if found:
        console.print(_latency_table(found, targets))
        console.print(_bars(console, found, targets), highlight=False)
    if any(level.counters for level in found):
        console.print(_engine_table(found, targets))
    if compared := book.comparisons():
        console.print(_comparison_table(compared, targets))
    if effects := book.prefix_effects():
        console.print(_prefix_table(effects, targets))
    _print_remarks(console, found, book)


def turn_line(record: TurnRecord, targets: Sequence[BenchTarget]) -> str:
    [level] = Book([record]).levels()
    name = f"{targets[record.turn.server].name} " if len(targets) > 1 else ""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in level.outcomes.items() if count)
    return (
        f"{name}{record.turn.clients} clients, round {record.turn.round + 1}: "
        f"{_shown(level.tokens_per_second)} tokens/s in {record.seconds:.1f} s ({outcomes})"
    )


def _latency_table(found: Sequence[Level], targets: Sequence[BenchTarget]) -> Table:
    titles = ("output\ntok/s", "first token ms\np50/p90/p99", "between tokens ms\np50/p90/p99", "longest\ngap ms")
    rows = [
        (
            *_place(level.clients, level.server, targets, level.is_complete),
            _shown(level.tokens_per_second),
            _percentiles(level.first_token),
            _percentiles(level.gap),
            _milliseconds(level.gap.highest if level.gap.count else None),
            "/".join(str(count) for count in level.outcomes.values()),
        )
        for level in found
    ]
    return table((*_places(targets), *titles, "ok/failed\n/429/503"), rows, "Throughput and latency")


def _engine_table(found: Sequence[Level], targets: Sequence[BenchTarget]) -> Table:
    rows = []
    for level in found:
        if (counters := level.counters) is not None:
            place = _place(level.clients, level.server, targets, level.is_complete)
            *per_step, outside = counters.figures().values()
            shares = (outside, measured.ratio(counters.prefix_hits, counters.prefix_queries))
            figures = [*(_shown(figure, ".2f") for figure in per_step), *(_shown(share, ".1%") for share in shares)]
            rows.append((*place, f"{counters.steps:.0f}", *figures))
    headings = (*_places(targets), *ENGINE, "outside\nthe graph", "prefix\nhits")
    return table(headings, rows, "Inside the engine, from /metrics")


def _comparison_table(compared: Sequence[load.Comparison], targets: Sequence[BenchTarget]) -> Table:
    titles = ("output\ntok/s", "lowest\nround", "highest\nround", "first token\np50", "gap\np50", "gap\np95")
    rows = [
        (*_place(each.clients, each.server, targets), *map(_times, dataclasses.astuple(each)[2:])) for each in compared
    ]
    return table((*_places(targets), *titles), rows, f"Ratios to {targets[0].name}, median of rounds side by side")


def _prefix_table(effects: Sequence[load.PrefixEffect], targets: Sequence[BenchTarget]) -> Table:
    rows = [
        (
            targets[effect.server].name,
            _shown(effect.prompt_tokens, ".0f"),
            _shown(effect.cached_tokens, ".0f"),
            _milliseconds(effect.cold_s),
            _milliseconds(effect.warm_s),
            _times(effect.warm_over_cold),
        )
        for effect in effects
    ]
    headings = ("server", "prompt\ntokens", "of them\ncached", "cold", "warm", "warm / cold")
    return table(headings, rows, "Shared prefix: first token in milliseconds, median")


def _places(targets: Sequence[BenchTarget]) -> tuple[str, ...]:
    return ("clients", "at") if len(targets) > 1 else ("clients",)


def _place(clients: int, server: int, targets: Sequence[BenchTarget], is_complete: bool = True) -> list[str]:
    count = str(clients) if is_complete else f"{clients}*"
    return [count, targets[server].name] if len(targets) > 1 else [count]


def _bars(console: Console, found: Sequence[Level], targets: Sequence[BenchTarget]) -> str:
    highest = max((level.tokens_per_second or 0.0 for level in found), default=0.0)
    is_plain = not console.encoding.lower().startswith("utf")
    lines = ["output tokens/s by clients"]
    for level in found:
        value = level.tokens_per_second or 0.0
        place = " ".join(_place(level.clients, level.server, targets))
        lines.append(f"{place:>8} {bar(value, highest, BAR_CELLS, is_plain)} {value:.1f}")
    return "\n".join(lines)


def _print_remarks(console: Console, found: Sequence[Level], book: Book) -> None:
    if any(not level.is_complete for level in found):
        console.print("* stopped before all of its requests were answered")
    busiest = max((level.own_cpu or 0.0 for level in found), default=0.0)
    if busiest > BUSY_GENERATOR:
        console.print(
            f"The load generator itself used {busiest:.0%} of one core: the figures may understate the server."
        )
    if any(not level.gaps_are_of_tokens for level in found):
        console.print("Chunks of several tokens that do not tell how many: 'between tokens' is between chunks.")
    if preempted := sum(level.counters.preemptions for level in found if level.counters):
        console.print(f"{preempted:.0f} sequences had to give their KV slots back and start again.", highlight=False)
    for message, count in book.errors():
        console.print(f"{count} x {message}", style="red", markup=False, highlight=False)


def _document(targets: Sequence[BenchTarget], load: BenchLoad, seed: int, book: Book) -> dict[str, Any]:
    """All figures and every answer, for later comparison."""
    unknown = dict.fromkeys(measured.FIGURES)
    return {
        "servers": [
            {"name": t.name, "address": t.address, "model": t.model, "sent": {**t.extra, **t.counting}} for t in targets
        ],
        "load": dataclasses.asdict(load) | {"seed": seed},
        "levels": [
            dataclasses.asdict(level) | (level.counters.figures() if level.counters else unknown)
            for level in book.levels()
        ],
        "comparisons": [dataclasses.asdict(each) for each in book.comparisons()],
        "shared_prefix": [dataclasses.asdict(each) for each in book.prefix_effects()],
        "turns": [dataclasses.asdict(record) for record in book.turns],
    }


def _percentiles(values: Distribution) -> str:
    return "/".join(_milliseconds(value) for value in (values.p50, values.p90, values.p99)) if values.count else "-"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f}" if seconds < 0.1 else f"{seconds * 1000:.0f}"


def _shown(value: float | None, form: str = ".1f") -> str:
    return "-" if value is None else format(value, form)


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


async def prepare(targets: Sequence[BenchTarget], full_length: bool, vocabulary: int = 0) -> tuple[WordLength, bool]:
    """Find models, warm every server up and measure words against prompt tokens on the first one. Returns that length
    and whether answers run to max_tokens. They do so only if every server takes ignore_eos. vocabulary: when it is not
    0, prompts are token ids below it. Raises Unreachable."""
    lengths = []
    for target in targets:
        await target.find_model()
        lengths.append(await _length(target, vocabulary))
        await _find_counting(target, vocabulary)
        target.extra = IGNORE_EOS
    runs_full = full_length and all(
        [(await _try(target, SHORT_WORDS, vocabulary)).outcome is AnswerOutcome.OK for target in targets]
    )
    for target in targets:
        target.extra = IGNORE_EOS if runs_full else {}
    return lengths[0], runs_full


async def _length(target: BenchTarget, vocabulary: int) -> WordLength:
    lengths = []
    for count in (SHORT_WORDS, LONG_WORDS):
        answer = await _try(target, count, vocabulary)
        if answer.outcome is not AnswerOutcome.OK or answer.usage is None:
            kind = "a prompt of token ids" if vocabulary else "a chat"
            raise Unreachable(f"{target.address} cannot answer {kind}: {answer.error}")
        lengths.append((count, answer.usage.prompt))
    return WordLength.fitted(*lengths)


async def _find_counting(target: BenchTarget, vocabulary: int) -> None:
    for target.counting in COUNTING:
        if (await _try(target, SHORT_WORDS, vocabulary)).outcome is AnswerOutcome.OK:
            return
    target.counting = {}


async def _try(target: BenchTarget, count: int, vocabulary: int) -> measured.MeasuredAnswer:
    draw = random.Random(count)
    ids = tuple(draw.choices(range(vocabulary), k=count)) if vocabulary else None
    return await target.answer(ids or [measured.user(measured.words(draw, count))], 2)


def targets_at(addresses: Sequence[str], api_key: str, model: str, timeout_s: float) -> list[BenchTarget]:
    """Servers called A, B, ... UnusableAddress."""
    names = (chr(ord("A") + number) if number < 26 else f"S{number}" for number in range(len(addresses)))
    return [BenchTarget(name, url, api_key, model, timeout_s) for name, url in zip(names, addresses, strict=True)]


@dataclass(frozen=True, slots=True)
class BenchSession:
    """One run. full_length: answers run to max_tokens if every server can."""

    api_key: str
    model: str
    timeout_s: float
    prompts: PromptSource
    load: BenchLoad
    full_length: bool
    json_file: Path | None
    console: Console = field(default_factory=Console)

    def run(self, addresses: Sequence[str], bundle: str) -> int:
        """Measure and report; the exit code: 0, 1 when a request or a server failed, 130 after Ctrl-C. bundle: what a
        server of our own is started on where there are no addresses."""
        with contextlib.ExitStack() as stack:
            if not addresses:
                self.console.print(f"Starting a server on {bundle} ...", markup=False)
                addresses = [stack.enter_context(running_server(bundle))]
            return self._run(targets_at(addresses, self.api_key, self.model, self.timeout_s))

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
            document = _document(targets, self.load, self.prompts.seed, book)
            write_file(self.json_file, json.dumps(document, indent=1).encode() + b"\n", "--json ")
            self.console.print(f"Written to {self.json_file}", markup=False, highlight=False)
        has_failures = any(answer.outcome is AnswerOutcome.FAILED for answer in book.answers())
        return INTERRUPTED if was_stopped else FAILED if has_failures else 0

    async def _measure(self, targets: Sequence[BenchTarget], book: Book) -> None:
        def tell(record: TurnRecord) -> None:
            self.console.print(turn_line(record, targets), markup=False, highlight=False, style="dim")

        try:
            length, runs_full = await prepare(targets, self.full_length, self.prompts.vocabulary)
            ends = "all of them" if runs_full else "or fewer, as the model ends"
            self.console.print(
                f"{self.load.requests_per_client} requests per client, {self.load.max_tokens} tokens each ({ends}), "
                f"{self.load.rounds} rounds, seed {self.prompts.seed}",
                highlight=False,
            )
            await load.measure(targets, dataclasses.replace(self.prompts, length=length), self.load, book, tell)
        finally:
            for target in targets:
                await target.close()
