"""How every command ends: 0, or one of these after one sentence on stderr."""

import sys
from typing import NoReturn

import typer

FAILED = 1  # it ran, and what it was asked for did not succeed
UNUSABLE = 2  # an option, a setting, a file or an address cannot be used
INTERRUPTED = 130  # Ctrl-C


def refuse(reason: object, code: int = UNUSABLE) -> NoReturn:
    print(f"error: {reason}", file=sys.stderr)
    raise typer.Exit(code)


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """'1,4,8' -> (1, 4, 8). Raises ValueError naming the option."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} must be whole numbers with commas between, not '{text}'") from None
    if min(found) < 1:
        raise ValueError(f"{option} must be at least 1 each, not '{text}'")
    return found
