"""One compilation with its progress on stderr, ended by the exit code that a shell expects."""

import sys

from rich.console import Console

from engine.compile.arguments import CompileArguments
from engine.compile.memory import peak_memory, peak_text
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import RichProgress
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
