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
from dataclasses import fields
from pathlib import Path

import msgspec
from rich.console import Console

from engine.compile.arguments import CompileArguments
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import RichProgress, peak_memory, peak_text
from engine.errors import BundleError, CompileError
from engine.sources.resolve import END_WITH_INPUT

FAILED, WRONG_ARGUMENTS, INTERRUPTED = 1, 2, 130


def run_compiler(arguments: CompileArguments) -> int:
    """Compile; 0, 1 after one line on stderr, 130 when it was interrupted."""
    try:
        with RichProgress(Console(stderr=True)) as progress:
            compile_bundle(arguments, progress)
            if told := peak_text(*peak_memory()):
                progress.note(told)
    except (CompileError, BundleError) as error:  # the latter: what QNN's variables name cannot be used
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    return 0


def decode_arguments(text: str) -> CompileArguments:
    """Of JSON; fields with a default may be left out. Raises msgspec.DecodeError."""
    values = msgspec.json.decode(text, type=dict[str, object])
    unknown = sorted(values.keys() - {field.name for field in fields(CompileArguments)})
    if unknown:
        raise msgspec.ValidationError(f"unknown field {unknown[0]}")
    return msgspec.convert(values, CompileArguments, dec_hook=_path_of)


def _path_of(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"{kind.__name__} cannot be received")


def main(argv: Sequence[str]) -> int:
    """Compile; 0, 1 after one line on stderr, 2 for anything but one JSON object, 130 when it was interrupted. 143
    after SIGTERM, which with the flag leaves as little behind as an interruption."""
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
        # Service managers send it to every process of a service.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        threading.Thread(target=_interrupt_at_end_of_input, daemon=True).start()
    return run_compiler(arguments)


def _interrupt_at_end_of_input() -> None:
    while os.read(0, 1024):  # not sys.stdin: its lock would be held when the interpreter ends
        pass
    _thread.interrupt_main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
