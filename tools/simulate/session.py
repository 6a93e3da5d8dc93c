"""One run of `python -m tools.simulate`: every policy on every device with progress, then the report."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tools.simulate.figures import Figures
from tools.simulate.report import print_assumptions, print_device, write_json, write_svg
from tools.simulate.scenario import Device, Scenario, assumptions, play


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
