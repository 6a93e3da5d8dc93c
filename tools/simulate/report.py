"""One run of `python -m tools.simulate`: every policy on every device, then figures as tables, bars and JSON."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from server.commands.bench.session import bar
from server.commands.tables import table
from tools.simulate.drawing import drawing
from tools.simulate.figures import Figures
from tools.simulate.scenario import Device, Scenario, assumptions, play

BAR_CELLS = 40
LATENCY = ("output\ntok/s", "of\nserial", "first token\nmean s", "first token\np95 s", "gap\np99 s", "longest\ngap s")
STEPS = ("steps", "useful rows\nper step", "tokens\nper step", "longest gap\nsteps", "KV slots\ngiven back")


def run_simulation(
    scenario: Scenario, devices: Sequence[Device], is_published: bool, json_file: Path | None, svg_file: Path | None
) -> None:
    """Simulate, print and write. ValueError when a file cannot be written."""
    console = Console()
    played = _play_all(scenario, devices, console)
    sentences = assumptions(scenario, is_published, devices[0].prices.slot_ms)
    for device_played, found in played:
        print_device(console, device_played, found)
    print_assumptions(console, sentences)
    if json_file is not None:
        write_json(json_file, scenario, played, sentences)
        console.print(f"Written to {json_file}", markup=False, highlight=False)
    if svg_file is not None:
        write_svg(svg_file, played)
        console.print(f"Drawn in {svg_file}", markup=False, highlight=False)


def _play_all(scenario: Scenario, devices: Sequence[Device], console: Console) -> list[tuple[Device, list[Figures]]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    tokens = len(devices) * sum((3 + len(scenario.slots)) * scenario.load(count).tokens for count in scenario.clients)
    played = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("simulating", total=tokens)
        for device in devices:
            found: list[Figures] = []
            for count in scenario.clients:
                bars.update(task, description=f"{device.name}, {count} clients")
                found += play(scenario, device, count, lambda amount: bars.advance(task, amount))
            played.append((device, found))
    return played


def print_device(console: Console, device: Device, found: Sequence[Figures]) -> None:
    """The tables of one model and a bar for every ratio."""
    shapes = device.prices.milliseconds
    steps = ", ".join(f"{shape} {shapes[shape]:.1f} ms" for shape in sorted(shapes))
    console.print(f"{device.name} ({device.source}): {steps}", highlight=False, markup=False, soft_wrap=True)
    for title, headings, cells in (("Throughput and latency", LATENCY, _latency_cells), ("Steps", STEPS, _step_cells)):
        rows = [(each.policy, str(each.clients), *cells(each)) for each in found]
        console.print(table(("policy", "clients", *headings), rows, title, words=1))
    console.print(_bars(console, found), highlight=False, markup=False)


def _latency_cells(each: Figures) -> tuple[str, ...]:
    times = (each.first_token_mean_s, each.first_token_p95_s, each.gap_p99_s, each.gap_longest_s)
    return (f"{each.tokens_per_second:.1f}", _times(each.of_serial), *(_seconds(value) for value in times))


def _step_cells(each: Figures) -> tuple[str, ...]:
    gap = "-" if each.gap_longest_steps is None else str(each.gap_longest_steps)
    return str(each.steps), f"{each.rows_per_step:.1f}", f"{each.tokens_per_step:.2f}", gap, str(each.preemptions)


def _bars(console: Console, found: Sequence[Figures]) -> str:
    highest = max(each.of_serial or 0.0 for each in found)
    is_plain = not console.encoding.lower().startswith("utf")
    width = max(len(each.policy) for each in found)
    lines = ["output tokens/s, as a multiple of serial"]
    for each in found:
        value = each.of_serial or 0.0
        drawn = bar(value, highest, BAR_CELLS, is_plain)
        lines.append(f"{each.clients:>7} {each.policy:<{width}} {drawn} {_times(value)}")
    return "\n".join(lines)


def print_assumptions(console: Console, sentences: Sequence[str]) -> None:
    """Every one of them, below the figures."""
    console.print("\nAssumed:")
    for sentence in sentences:
        console.print(f"- {sentence}", highlight=False, markup=False)


def write_json(
    path: Path, scenario: Scenario, played: Sequence[tuple[Device, Sequence[Figures]]], sentences: Sequence[str]
) -> None:
    """All figures, what they were made from and what was assumed. ValueError when the file cannot be written."""
    document: dict[str, Any] = {
        "scenario": dataclasses.asdict(scenario),
        "devices": [_device_object(device, found) for device, found in played],
        "assumptions": list(sentences),
    }
    write("--json", path, json.dumps(document, indent=1) + "\n")


def write_svg(path: Path, played: Sequence[tuple[Device, Sequence[Figures]]]) -> None:
    """The rates as bars. ValueError when the file cannot be written."""
    write("--svg", path, drawing([(device.name, device.source, found) for device, found in played]))


def write(option: str, path: Path, text: str) -> None:
    """A file that an option names. ValueError when it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{option} {path} cannot be written: {error.strerror or error}") from None


def _device_object(device: Device, found: Sequence[Figures]) -> dict[str, Any]:
    times = sorted(device.prices.milliseconds.items())
    return {
        "name": device.name,
        "source": device.source,
        "steps": [{"rows": s.rows, "past": s.past, "milliseconds": milliseconds} for s, milliseconds in times],
        "figures": [dataclasses.asdict(each) for each in found],
    }


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
