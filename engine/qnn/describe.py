"""`python -m engine.qnn.describe FILE.bin`: what a context binary holds, as JSON on stdout.

One process for each binary: a damaged one kills it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.errors import BundleError
from engine.qnn.library import library_path
from engine.qnn.memory import LayoutError
from engine.qnn.system import read_binary

REFUSED = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Print the description; 3 after one sentence on stderr when the binary is refused."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if len(arguments) != 1:
        print("usage: python -m engine.qnn.describe FILE.bin", file=sys.stderr)
        return 2
    try:
        info = read_binary(library_path("QnnSystem"), Path(arguments[0]))
    except (LayoutError, BundleError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return REFUSED
    # The libraries print banners to stdout: the JSON is the last line.
    sys.stdout.write("\n" + msgspec.json.encode(info).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
