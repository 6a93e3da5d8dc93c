"""The checks printed as they finish, and written to a file if one is named."""

import sys
import time
from pathlib import Path

import msgspec

from engine.doctor.check import Check, CheckStatus
from engine.doctor.examination import examine
from engine.doctor.machine import environment, machine_facts, versions
from server.commands.exit_codes import FAILED, UNUSABLE

MARKS = {CheckStatus.PASS: "ok  ", CheckStatus.FAIL: "FAIL", CheckStatus.SKIP: "--  "}


def tell(report: Path | None, bundle: Path | None) -> int:
    """Examine this machine; 0 when nothing failed, 1 when something did, 2 when the report cannot be written."""
    checks = []
    for check in examine(bundle):
        print(line(check), flush=True)
        checks.append(check)
    failed = [check for check in checks if check.status is CheckStatus.FAIL]
    print(verdict(failed))
    if report is not None and not write_report(report, checks):
        return UNUSABLE
    return FAILED if failed else 0


def line(check: Check) -> str:
    """One check, with its advice on a line of its own."""
    text = f"{MARKS[check.status]} {check.name:<22} {check.text}"
    return f"{text}\n     -> {check.advice}" if check.advice else text


def verdict(failed: list[Check]) -> str:
    """The last line."""
    if not failed:
        return "Nothing is wrong."
    return f"{len(failed)} of the checks failed, the first: {failed[0].name}"


def write_report(path: Path, checks: list[Check]) -> bool:
    """Everything a bug report needs, as JSON; False after a line on stderr when it cannot be written."""
    content = {
        "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "environment": environment(),
        "machine": machine_facts(),
        "checks": checks,
    }
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))
    except OSError as error:
        print(f"error: {path} cannot be written: {error.strerror or error}", file=sys.stderr)
        return False
    print(f"report written to {path}")
    return True
