"""How every command ends: 0, or one of these after one sentence on stderr."""

import sys
from pathlib import Path
from typing import NoReturn

import typer

FAILED = 1  # it ran, and what it was asked for did not succeed
UNUSABLE = 2  # an option, a setting, a file or an address cannot be used
INTERRUPTED = 130  # Ctrl-C


class CommandFailed(Exception):
    """A command ran and did not succeed; the message is its sentence."""


def refuse(reason: object, code: int = UNUSABLE) -> NoReturn:
    print(f"error: {reason}", file=sys.stderr)
    raise typer.Exit(code)


def check_folder(json_file: Path | None) -> None:
    """Before anything is measured for it."""
    if json_file is not None and not json_file.absolute().parent.is_dir():
        refuse(f"--json {json_file} cannot be written: its folder does not exist")


def write_file(path: Path, content: bytes, option: str = "") -> None:
    """Write what was found; ends the command when the file cannot be written. option: that named it, and a space."""
    try:
        path.write_bytes(content)
    except OSError as error:
        refuse(f"{option}{path} cannot be written: {error.strerror or error}")


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """'1,4,8' -> (1, 4, 8). Raises ValueError naming the option."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} must be whole numbers with commas between, not '{text}'") from None
    if min(found) < 1:
        raise ValueError(f"{option} must be at least 1 each, not '{text}'")
    return found
