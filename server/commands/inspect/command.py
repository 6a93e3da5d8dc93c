"""`hexserve inspect`: draw a bundle."""

import os
import sys
from pathlib import Path

from rich.console import Console

from engine.errors import BundleError
from engine.sources.resolve import default_cache, resolve_bundle
from server.commands.inspect.drawing import describe


def show(bundle: str, graph: str | None, check_hashes: bool) -> int:
    """Print what a bundle holds; the exit code."""
    cache = Path(os.environ.get("HEXSERVE_CACHE_DIR") or default_cache()).expanduser()
    try:
        Console().print(describe(resolve_bundle(bundle, cache), graph, check_hashes=check_hashes))
    except BundleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
