"""`hexserve doctor`: the checks printed as they finish, and written to a file if one is named."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.commands.exit_codes import FAILED, write_file

if TYPE_CHECKING:
    from engine.doctor.machine import Check

MARKS: Mapping[str, str] = {"pass": "ok  ", "fail": "FAIL", "skip": "--  "}


def line(check: "Check") -> str:
    text = f"{MARKS[check.status]} {check.name:<22} {check.text}"
    return f"{text}\n     -> {check.advice}" if check.advice else text


def write_report(path: Path, checks: list["Check"]) -> None:
    """Everything a bug report needs, as JSON; ends the command when it cannot be written."""
    import msgspec

    from engine.doctor.machine import environment, machine_facts, versions

    content = {
        "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "environment": environment(),
        "machine": machine_facts(),
        "checks": checks,
    }
    write_file(path, msgspec.json.format(msgspec.json.encode(content), indent=1))
    print(f"report written to {path}")


def doctor(
    report: Annotated[
        Path | None, typer.Option(help="Also write what was found to this file, for a bug report.")
    ] = None,
    bundle: Annotated[Path | None, typer.Option(help="An NPU bundle folder to examine as well.")] = None,
) -> None:
    """Tell what this machine can run: providers, driver, chip, a test graph on the NPU against the CPU."""
    from engine.doctor.examination import examine

    checks = []
    for check in examine(bundle):
        print(line(check), flush=True)
        checks.append(check)
    failed = [check for check in checks if check.status == "fail"]
    print(f"{len(failed)} of the checks failed, the first: {failed[0].name}" if failed else "Nothing is wrong.")
    if report is not None:
        write_report(report, checks)
    raise typer.Exit(FAILED if failed else 0)
