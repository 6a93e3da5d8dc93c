"""`python -m engine.compile [--end-with-input] ARGUMENTS`: the compiler in a process of its own.

ARGUMENTS: `CompileArguments` as JSON. --end-with-input: end, in order, when standard input does, for its other end is
held by a parent that may be killed.
"""

import _thread
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import msgspec

from engine.compile.console import decode_arguments, run_compiler
from engine.sources.resolve import END_WITH_INPUT

WRONG_ARGUMENTS = 2


def main(argv: Sequence[str]) -> int:
    """Compile; 0, 1 after one line on stderr, 2 for anything but one JSON object, 130 when it was interrupted.

    143 after SIGTERM, which with the flag leaves as little behind as an interruption.
    """
    try:
        *flags, text = argv
        if flags not in ([], [END_WITH_INPUT]):
            raise ValueError(" ".join(flags))
        arguments = decode_arguments(text)
    except (ValueError, msgspec.DecodeError) as error:
        print(f"error: python -m engine.compile takes CompileArguments as JSON: {error}", file=sys.stderr)
        return WRONG_ARGUMENTS
    if flags:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
        signal.signal(signal.SIGTERM, _unwind)  # service managers send it to every process of a service
        threading.Thread(target=_interrupt_at_end_of_input, daemon=True).start()
    return run_compiler(arguments)


def _unwind(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _interrupt_at_end_of_input() -> None:
    while os.read(0, 1024):  # not sys.stdin: its lock would be held when the interpreter ends
        pass
    _thread.interrupt_main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
