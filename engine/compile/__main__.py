"""`python -m engine.compile ARGUMENTS`: the compiler in a process of its own. ARGUMENTS: `CompileArguments` as JSON."""

import sys
from collections.abc import Sequence

import msgspec

from engine.compile.arguments_json import decode_arguments
from engine.compile.console import run_compiler

WRONG_ARGUMENTS = 2


def main(argv: Sequence[str]) -> int:
    """Compile; 0, 1 after one line on stderr, 2 for anything but one JSON object, 130 when it was interrupted."""
    try:
        (text,) = argv
        arguments = decode_arguments(text)
    except (ValueError, msgspec.DecodeError) as error:
        print(f"error: python -m engine.compile takes CompileArguments as JSON: {error}", file=sys.stderr)
        return WRONG_ARGUMENTS
    return run_compiler(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
