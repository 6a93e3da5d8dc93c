"""`hexserve bench`: options, the run, and what is printed when it ends, also when it is stopped."""

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from server.commands.bench.answers import AnswerOutcome
from server.commands.bench.calibrate import prepare
from server.commands.bench.own_server import ServerFailed, running_server
from server.commands.bench.prompts import BadPrompts, PromptSource, read_prompts
from server.commands.bench.report import print_report, turn_line, write_json
from server.commands.bench.rounds import BenchLoad, Book, TurnRecord, measure
from server.commands.bench.target import BenchTarget, Unreachable, root_address
from server.commands.counts import counts

INTERRUPTED = 130
ROUNDS_SIDE_BY_SIDE = 3


def bench(
    urls: Annotated[list[str] | None, typer.Argument(metavar="URL", help="Servers to load, in turns.")] = None,
    url: Annotated[list[str] | None, typer.Option(help="The same as a URL argument; may be repeated.")] = None,
    bundle: Annotated[str, typer.Option(help="Without a URL: what to start a server on.")] = "demo",
    clients: Annotated[str, typer.Option(help="Numbers of clients at once.")] = "1,4,8,16",
    requests_per_client: Annotated[int, typer.Option(min=1, help="Requests of each client, one by one.")] = 4,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of made-up prompts, about.")] = 64,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 64,
    rounds: Annotated[int, typer.Option(min=0, help="Turns of each server; 0 = 1, or 3 with several servers.")] = 0,
    prompts: Annotated[Path | None, typer.Option(help="Prompts instead: one per line, text or JSON.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the prompts; a new one for every run if left out.")] = None,
    model: Annotated[str, typer.Option(help="Model name; the first one listed if left out.")] = "",
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Bearer key.")] = "",
    shared_prefix: Annotated[int, typer.Option(min=0, help="Also time prompts that share N tokens, cold, warm.")] = 0,
    full_length: Annotated[bool, typer.Option(help="Run every answer to max-tokens where a server can.")] = True,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds without a byte before a request fails.")] = 300.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Measure tokens per second and latencies under load; several URLs are compared side by side."""
    console = Console()
    try:
        levels = counts(clients, "--clients")
        texts = read_prompts(prompts) if prompts else ()
        addresses = [root_address(address) for address in (*(urls or ()), *(url or ()))]
        rounds = rounds or (ROUNDS_SIDE_BY_SIDE if len(addresses) > 1 else 1)
        load = BenchLoad(levels, requests_per_client, max_tokens, rounds, shared_prefix)
        source = PromptSource(secrets.randbelow(2**31) if seed is None else seed, prompt_tokens, texts=texts)
        with contextlib.ExitStack() as stack:
            if not addresses:
                console.print(f"Starting a server on {bundle} ...", markup=False)
                addresses = [stack.enter_context(running_server(bundle))]
            targets = [BenchTarget(_name(n), url, api_key, model, timeout) for n, url in enumerate(addresses)]
            status = _run(console, targets, source, load, full_length, json_file)
    except (BadPrompts, Unreachable, ServerFailed, ValueError, OSError) as error:
        Console(stderr=True).print(f"bench: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    if status:
        raise typer.Exit(status)


def _name(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"S{number}"


def _run(
    console: Console,
    targets: Sequence[BenchTarget],
    source: PromptSource,
    load: BenchLoad,
    full_length: bool,
    json_file: Path | None,
) -> int:
    """Returns the exit status: 0, 1 when a request failed, 130 after Ctrl-C."""
    book = Book()
    was_stopped = False
    try:
        asyncio.run(_measure(console, targets, source, load, full_length, book))
    except KeyboardInterrupt:
        was_stopped = True
        console.print("Stopped; this is what was measured:")
    print_report(console, targets, book)
    if json_file is not None:
        write_json(json_file, targets, load, source.seed, book)
        console.print(f"Written to {json_file}", markup=False, highlight=False)
    has_failures = any(a.outcome is AnswerOutcome.FAILED for record in book.turns for a in record.answers)
    return INTERRUPTED if was_stopped else int(has_failures)


async def _measure(
    console: Console,
    targets: Sequence[BenchTarget],
    source: PromptSource,
    load: BenchLoad,
    full_length: bool,
    book: Book,
) -> None:
    def tell(record: TurnRecord) -> None:
        console.print(turn_line(record, targets), markup=False, highlight=False, style="dim")

    try:
        length, runs_full = await prepare(targets, full_length)
        ends = "all of them" if runs_full else "or fewer, as the model ends"
        console.print(
            f"{load.requests_per_client} requests per client, {load.max_tokens} tokens each ({ends}), "
            f"{load.rounds} rounds, seed {source.seed}",
            highlight=False,
        )
        sized = PromptSource(source.seed, source.prompt_tokens, length, source.texts)
        await measure(targets, sized, load, book, tell)
    finally:
        for target in targets:
            await target.close()
