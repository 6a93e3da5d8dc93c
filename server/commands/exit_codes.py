"""How every command ends: 0, or one of these after one sentence on stderr."""

import sys
from typing import NoReturn

import typer

FAILED = 1  # it ran, and what it was asked for did not succeed
UNUSABLE = 2  # an option, a setting, a file or an address cannot be used
INTERRUPTED = 130  # Ctrl-C


def refuse(reason: object, code: int = UNUSABLE) -> NoReturn:
    """Say why on stderr and end the command."""
    print(f"error: {reason}", file=sys.stderr)
    raise typer.Exit(code)
