"""The command `hexserve`, for the console script and for `python -m server`."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every import here is time in which a signal finds no handler
    from importlib.machinery import ModuleSpec
    from pathlib import Path

USER_ERROR = 2
INTERRUPTED = 130


def main() -> None:
    """Run the command line, unless the `engine` that would be imported is not the one beside this `server`. Everything
    is imported in here: a signal ends the command, without a traceback, from the beginning."""
    try:
        from server.signals import end_at_once  # noqa: PLC0415

        end_at_once()
        if hasattr(sys.stdout, "reconfigure"):  # what a pipe on Windows, or a terminal, cannot take must end no command
            sys.stdout.reconfigure(errors="replace")
        import importlib.util  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        problem = foreign_engine(importlib.util.find_spec("engine"), Path(__file__).resolve().parents[1])
        if problem:
            print(f"error: {problem}", file=sys.stderr)
            sys.exit(USER_ERROR)
        from server.commands.cli import run  # noqa: PLC0415

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def foreign_engine(found: "ModuleSpec | None", root: "Path") -> str:
    """One sentence when `found` is not the package `engine` of the folder `root`, else ''. The name is a common one:
    the working folder, PYTHONPATH or another distribution may have an `engine` too."""
    file = type(root)(found.origin).resolve() if found is not None and found.origin else None
    if file == root / "engine" / "__init__.py":
        return ""
    advice = "call hexserve rather than python -m server, and install it in an environment of its own"
    return f"hexserve lies in {root}, but 'engine' would be imported from {file or 'nowhere'}: {advice}"


if __name__ == "__main__":
    main()
