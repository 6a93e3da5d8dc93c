"""How the compiler tells how far it is, and how much memory it took. The stages know only `ProgressSink`."""

import sys
from typing import Protocol

from rich import progress
from rich.console import Console
from rich.text import Text


class ProgressSink(Protocol):
    """Receives stages and amounts; an implementation may draw them or drop them."""

    def stage(self, title: str, total: int, unit: str) -> None:
        """A stage begins; `total` units are to be done, 0 = unknown. Unit 'B' counts bytes."""

    def advance(self, amount: int) -> None:
        """So many more units are done."""

    def note(self, text: str) -> None:
        """A line worth keeping."""


class SilentProgress:
    """Drops everything."""

    def stage(self, title: str, total: int, unit: str) -> None: ...
    def advance(self, amount: int) -> None: ...
    def note(self, text: str) -> None: ...


class _Rate(progress.ProgressColumn):
    """How fast a stage goes."""

    def render(self, task: progress.Task) -> Text:
        return Text(f"{_rate_of(task):>12}", "cyan")


class RichProgress:
    """Bars with rate and remaining time on a terminal, one plain line per finished stage elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("[bold]{task.description:<22}"),
            progress.BarColumn(bar_width=28),
            progress.TaskProgressColumn(),
            _Rate(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "RichProgress":
        self._bars.start()
        return self

    def __exit__(self, *exit_info: object) -> None:
        self._finish()
        self._bars.stop()

    def stage(self, title: str, total: int, unit: str) -> None:
        """Finish the bar before and start the next."""
        self._finish()
        self._bars.add_task(title, total=total or None, unit=unit)

    def advance(self, amount: int) -> None:
        for task in self._bars.tasks[-1:]:
            self._bars.advance(task.id, amount)

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _finish(self) -> None:
        for task in self._bars.tasks[-1:]:
            count = max(task.completed, 1)
            self._bars.update(task.id, total=count, completed=count)
            self._bars.stop_task(task.id)
            if not self._console.is_terminal:
                line = f"{task.description:<22} {task.elapsed or 0.0:6.1f} s {_rate_of(task):>12}"
                self._console.print(line, markup=False, highlight=False)


def _rate_of(task: progress.Task) -> str:
    return rate_text(task.completed, task.elapsed or 0.0, task.fields["unit"])


def rate_text(amount: float, seconds: float, unit: str) -> str:
    """'412.0 MB/s', '3.1 graphs/s', or nothing while there is nothing to divide."""
    if seconds <= 0 or amount <= 0:
        return ""
    if unit == "B":
        return f"{amount / seconds / 1e6:.1f} MB/s"
    return f"{amount / seconds:.1f} {unit}/s"


KIB = 1024


def peak_memory() -> tuple[int, int]:
    """Most resident bytes so far of this process, and of the largest one it has waited for; 0 where unknown."""
    if sys.platform == "win32":
        return 0, 0
    import resource  # noqa: PLC0415 (there is none on Windows)

    unit = 1 if sys.platform == "darwin" else KIB
    own, child = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own * unit, child * unit


def peak_text(own: int, child: int) -> str:
    """A line for the end of a compilation; empty where nothing is known. Processes beside it count from 0.1 GB."""
    if not own:
        return ""
    beside = f", its largest process beside it {child / 1e9:.1f} GB" if child >= 1e8 else ""
    return f"peak memory {own / 1e9:.1f} GB{beside}"
