"""`hexserve bench`: options, and what they name."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from server.commands.exit_codes import check_folder, refuse, whole_numbers


def bench(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="URL...|NAME", help="Servers to load, in turns, or a model to start one on (demo)."),
    ] = None,
    url: Annotated[list[str] | None, typer.Option(help="The same as a URL argument; may be repeated.")] = None,
    clients: Annotated[str, typer.Option(help="Numbers of clients at once.")] = "1,4,8,16",
    requests_per_client: Annotated[int, typer.Option(min=1, help="Requests of each client, one by one.")] = 4,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of made-up prompts, about.")] = 64,
    token_ids: Annotated[
        int, typer.Option(min=0, help="Prompts as random token ids below N, exactly prompt-tokens of them.")
    ] = 0,
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
    from server.commands.bench.load import BenchLoad
    from server.commands.bench.measured import PromptSource, read_prompts
    from server.commands.bench.session import BenchSession
    from server.commands.http_client import headers_for, is_server, root_address

    try:
        levels = whole_numbers(clients, "--clients")
    except ValueError as error:
        refuse(error)
    texts = read_prompts(prompts) if prompts else ()
    names = [target for target in targets or () if not is_server(target)]
    addresses = [root_address(text) for text in (*(targets or ()), *(url or ())) if text not in names]
    headers_for(api_key)
    if len(names) > 1 or (names and addresses):
        refuse(f"{names[0]} is no address of a server; to compare models, serve each and name the servers")
    check_folder(json_file)
    rounds = rounds or (3 if len(addresses) > 1 else 1)
    load = BenchLoad(levels, requests_per_client, max_tokens, rounds, shared_prefix)
    seed = secrets.randbelow(2**31) if seed is None else seed  # short enough to be typed again
    source = PromptSource(seed, prompt_tokens, texts=texts, vocabulary=token_ids)
    session = BenchSession(api_key, model, timeout, source, load, full_length, json_file)
    raise typer.Exit(session.run(addresses, names[0] if names else "demo"))
