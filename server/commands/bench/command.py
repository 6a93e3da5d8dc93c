"""`hexserve bench`: options, and what they name."""

from pathlib import Path
from typing import Annotated

import typer

from server.commands.exit_codes import refuse
from server.commands.number_list import whole_numbers

ROUNDS_SIDE_BY_SIDE = 3


def bench(
    urls: Annotated[list[str] | None, typer.Argument(metavar="URL", help="Servers to load, in turns.")] = None,
    url: Annotated[list[str] | None, typer.Option(help="The same as a URL argument; may be repeated.")] = None,
    bundle: Annotated[str, typer.Option(help="Without a URL: what to start a server on.")] = "demo",
    paced: Annotated[
        str,
        typer.Option(metavar="DEVICE/MODEL", help="Measure the host beside published pass times, no device needed."),
    ] = "",
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
    profile: Annotated[bool, typer.Option(help="Show where the steps of a server of our own take their time.")] = False,
    markdown: Annotated[bool, typer.Option(help="With --profile: its table as Markdown.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Measure tokens per second and latencies under load; several URLs are compared side by side."""
    from server.commands.bench.prompts import BadPrompts, PromptSource, fresh_seed, read_prompts
    from server.commands.bench.rounds import BenchLoad
    from server.commands.bench.session import Servers, run_bench
    from server.commands.http_client.address import UnusableAddress, headers_for, root_address

    try:
        levels = whole_numbers(clients, "--clients")
        texts = read_prompts(prompts) if prompts else ()
        addresses = [root_address(address) for address in (*(urls or ()), *(url or ()))]
        headers_for(api_key)
    except (BadPrompts, UnusableAddress, ValueError) as error:
        refuse(error)
    if json_file is not None and not json_file.absolute().parent.is_dir():
        refuse(f"--json {json_file} cannot be written: its folder does not exist")
    rounds = rounds or (ROUNDS_SIDE_BY_SIDE if len(addresses) > 1 else 1)
    load = BenchLoad(levels, requests_per_client, max_tokens, rounds, shared_prefix)
    source = PromptSource(fresh_seed() if seed is None else seed, prompt_tokens, texts=texts, vocabulary=token_ids)
    if paced:
        if addresses or prompts or shared_prefix or bundle != "demo":
            refuse("--paced starts a server and makes its prompts itself: leave out URLs, --bundle, --prompts")
        if profile or markdown or token_ids or model or api_key or rounds > 1 or not full_length:
            refuse(
                "--paced runs its cases once each: leave out --profile, --markdown, --token-ids, --model, --api-key, "
                "--rounds, --no-full-length"
            )
        from server.commands.bench.paced import run_paced

        raise typer.Exit(run_paced(paced, source, load, timeout, json_file))
    servers = Servers(addresses, bundle, api_key, model, timeout)
    if profile:
        if addresses:
            refuse("--profile starts a server of its own: leave the URLs out and name a --bundle")
        from server.commands.bench.profile import run_profile

        raise typer.Exit(run_profile(servers, source, load, markdown))
    raise typer.Exit(run_bench(servers, source, load, full_length, json_file))
