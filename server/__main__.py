"""The command `hexserve`, for the console script and for `python -m server`."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line. Everything is imported in here: Ctrl-C ends without a traceback from the beginning."""
    try:
        from server.commands.cli import run  # noqa: PLC0415

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
