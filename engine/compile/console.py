"""The compiler from a shell: its arguments as JSON, its progress on stderr, the exit code that a shell expects."""

import sys
from dataclasses import fields
from pathlib import Path

import msgspec
from rich.console import Console

from engine.compile.arguments import CompileArguments
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import RichProgress, peak_memory, peak_text
from engine.errors import BundleError, CompileError

FAILED, INTERRUPTED = 1, 130


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
