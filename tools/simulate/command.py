"""The options of `python -m tools.simulate`, their limits, and what they name."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from server.commands.exit_codes import refuse, whole_numbers
from tools.simulate.both import BOTH_PROMPTS, run_both
from tools.simulate.host_times import MEASURED, HostTimes
from tools.simulate.lone import run_lone
from tools.simulate.published import HUB
from tools.simulate.report import run_simulation
from tools.simulate.scenario import Scenario, check_lengths, measured_device, published_devices

MODEL, DEVICE = "llama_v3_2_3b_instruct", "x-elite"
OWN_KV_BYTES = 65_536

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def simulate(
    model: Annotated[
        str,
        typer.Option(
            help=f"Model of AI Hub with published times, hub:NAME to ask for today's, or all; {MODEL} if left out."
        ),
    ] = "",
    device: Annotated[str, typer.Option(help=f"Device they were published for; {DEVICE} if left out.")] = "",
    rows: Annotated[str, typer.Option(help="Rows of the variants; 1,32,128 if left out.")] = "",
    context: Annotated[int | None, typer.Option(help="KV slots of the variants; as published if left out.")] = None,
    same_context: Annotated[bool, typer.Option(help="Give each variant its own past, as AI Hub and Genie do.")] = False,
    costs: Annotated[
        Path | None, typer.Option(help='Your own step times: JSON, {"times": [[rows, past, ms], ...]}.')
    ] = None,
    kv_bytes: Annotated[
        int | None, typer.Option(help=f"With --costs or hub: cache bytes of a token; {OWN_KV_BYTES} if left out.")
    ] = None,
    clients: Annotated[str, typer.Option(help="Numbers of clients at once.")] = "1,4,8,16",
    requests: Annotated[int, typer.Option(help="Requests of each client, one by one.")] = 4,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 256,
    output: Annotated[int, typer.Option(help="Tokens of each answer.")] = 128,
    rate: Annotated[float, typer.Option(help="Clients that come per second (Poisson); 0 = all at once.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of their times.")] = 0,
    host_ms: Annotated[
        float | None, typer.Option(help="Time of the host for each step; as measured if left out.")
    ] = None,
    lone: Annotated[bool, typer.Option(help="One stream on the NPU beside the CPU instead, published rates.")] = False,
    both: Annotated[bool, typer.Option(help="NPU and CPU together instead, beside each alone.")] = False,
    slots: Annotated[str, typer.Option(help="Also fused graphs of so many decode slots, such as 1,4,8.")] = "",
    slot_ms: Annotated[float, typer.Option(help="What each further cache of a fused graph costs a step.")] = 0.0,
    max_gap_ms: Annotated[float, typer.Option(help="The server's setting of that name.")] = 200.0,
    reserve_tokens: Annotated[int, typer.Option(help="The server's setting of that name.")] = 128,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    svg_file: Annotated[Path | None, typer.Option("--svg", help="Draw the rates into this file.")] = None,
) -> None:
    """What the scheduler would do on a device: real decisions, published step times, a simulated clock."""
    try:
        levels = whole_numbers(clients, "--clients")
        if lone:
            others = {"--costs": costs, "--rows": rows, "--slots": slots, "--svg": svg_file}
            _refuse_given(others, "goes without --lone: that compares published rates of one stream")
            _within("--prompt", prompt, 1, 2**20)
            _within("--output", output, 1, 2**20)
            run_lone(prompt, output, json_file)
            raise typer.Exit
        if both:
            others = {"--costs": costs, "--model": model, "--rows": rows, "--slots": slots, "--json": json_file}
            _refuse_given(others, "goes without --both: that takes published rates of one model")
            _within("--requests", requests, 1, 1000)
            _within("--output", output, 1, 4096)
            raise typer.Exit(run_both(levels, requests, BOTH_PROMPTS, output, svg_file))
        _within("--host-ms", host_ms or 0.0, 0, 1_000_000)
        _within("--slot-ms", slot_ms, 0, 1_000_000)
        host = MEASURED if host_ms is None else HostTimes.constant(host_ms)
        own = (host, max_gap_ms, reserve_tokens)
        listed_slots = whole_numbers(slots, "--slots") if slots else ()
        scenario = _checked(Scenario(levels, requests, prompt, output, rate, seed, *own, slots=listed_slots))
        cached = OWN_KV_BYTES if kv_bytes is None else kv_bytes
        _within("--kv-bytes", cached, 1, 2**24)
        if costs is None:
            if not model.startswith(HUB):
                _refuse_given({"--kv-bytes": kv_bytes}, "needs --costs or a model of hub: the others have their own")
            listed = whole_numbers(rows, "--rows") if rows else ()
            devices = published_devices(model or MODEL, device or DEVICE, listed, context, same_context, cached)
        else:
            given = {"--model": model, "--device": device, "--rows": rows, "--context": context}
            given["--same-context"] = same_context
            _refuse_given(given, "goes without --costs: that file names its own variants")
            devices = [measured_device(costs, cached)]
        devices = [replace(each, prices=replace(each.prices, slot_ms=slot_ms)) for each in devices]
        check_lengths(scenario, devices)
        run_simulation(scenario, devices, costs is None, json_file, svg_file)
    except ValueError as error:
        refuse(error)


def _checked(scenario: Scenario) -> Scenario:
    _within("--clients", max(scenario.clients), 1, 1024)
    _within("--requests", scenario.requests, 1, 1000)
    _within("--prompt", scenario.prompt, 1, 2**20)
    _within("--output", scenario.output, 1, 2**20)
    _within("--rate", scenario.rate, 0, 1_000_000)
    _within("--max-gap-ms", scenario.max_gap_ms, 1, 1_000_000)
    _within("--reserve-tokens", scenario.reserve_tokens, 0, 2**20)
    return scenario


def _within(option: str, value: float, least: float, most: float) -> None:
    """ValueError naming the option and its limits; not-a-number is outside any."""
    if not least <= value <= most:
        raise ValueError(f"{option} must be {least} to {most}, not {value}")


def _refuse_given(given: Mapping[str, object], reason: str) -> None:
    for option, value in given.items():
        if value not in (None, "", False):
            raise ValueError(f"{option} {reason}")
