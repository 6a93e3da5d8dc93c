"""What starts of the server have measured of a bundle, drawn for a reader."""

from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from engine.bundle.stored_times import StoredTimes, all_times
from server.commands.tables import table


def step_time_tables(bundle: Path, costs: Path) -> list[RenderableType]:
    """A line and a table for each machine and setting under which steps were measured."""
    stored = all_times(costs, bundle)
    return [part for each in stored for part in (Text(f"ms of a step on {_machine(each)}", style="bold"), _table(each))]


def _table(stored: StoredTimes) -> Table:
    """A row for each number of rows, a column for each past."""
    times = stored.of_shapes()
    pasts = sorted({shape.past for shape in times})
    rows = []
    for count in sorted({shape.rows for shape in times}):
        line = {shape.past: f"{milliseconds:.1f}" for shape, milliseconds in times.items() if shape.rows == count}
        rows.append((f"{count:,}", *(line.get(past, "") for past in pasts)))
    return table(("rows", *(f"past {past:,}" for past in pasts)), rows)


def _machine(stored: StoredTimes) -> str:
    threads = f"{stored.threads} threads" if stored.threads else ""
    name = stored.processor or "a processor without a name"
    return ", ".join(filter(None, (name, f"{stored.cores} cores", threads, stored.how)))
