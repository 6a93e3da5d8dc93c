"""What a server takes while nobody asks: `python -m tools.proofs.idle PID [--seconds 60]`, the PID of `hexserve serve`.

Prints the processor time of the server and all its children as a share of one core. Other work on the machine does not
count; exit code 1 above `--most` percent.
"""

import time
from typing import Annotated

import psutil
import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def processor_seconds(pid: int) -> float:
    """Of the process and what it has started, so far. psutil.NoSuchProcess."""
    root = psutil.Process(pid)
    times = [each.cpu_times() for each in (root, *root.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


@app.command()
def idle(
    pid: Annotated[int, typer.Argument(help="Process id of the server.")],
    seconds: Annotated[float, typer.Option(min=1, help="How long to watch.")] = 60.0,
    most: Annotated[float, typer.Option(min=0, help="Percent of a core that are allowed.")] = 0.3,
) -> None:
    """Watch a server that nobody asks."""
    try:
        before, began = processor_seconds(pid), time.monotonic()
        time.sleep(seconds)
        share = 100 * (processor_seconds(pid) - before) / (time.monotonic() - began)
    except psutil.NoSuchProcess:
        typer.echo(f"there is no process {pid}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{share:.3f} % of a core over {seconds:.0f} s")
    raise typer.Exit(int(share > most))


if __name__ == "__main__":
    app(prog_name="python -m tools.proofs.idle")
