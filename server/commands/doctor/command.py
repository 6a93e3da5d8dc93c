"""`hexserve doctor`: options."""

from pathlib import Path
from typing import Annotated

import typer


def doctor(
    report: Annotated[
        Path | None, typer.Option(help="Also write what was found to this file, for a bug report.")
    ] = None,
    bundle: Annotated[Path | None, typer.Option(help="An NPU bundle folder to examine as well.")] = None,
) -> None:
    """Tell what this machine can run: providers, driver, chip, a test graph on the NPU against the CPU."""
    from server.commands.doctor.report import tell

    raise typer.Exit(tell(report, bundle))
