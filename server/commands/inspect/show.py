"""A bundle found, drawn and compared with its manifest."""

import os
import sys

from rich.console import Console

from engine.bundle.manifest import load_manifest, verify_hashes
from engine.errors import BundleError
from engine.sources.resolve import cache_folder, resolve_bundle
from server.commands.exit_codes import FAILED, UNUSABLE
from server.commands.inspect.drawing import describe
from server.settings import SettingsError, load_settings


def show(bundle: str, graph: str | None, check_hashes: bool) -> int:
    """Print what a bundle holds; the exit code, 1 when a file's sha256 is not the manifest's."""
    try:
        cache_dir = load_settings({"bundle": bundle}, os.environ, None).cache_dir
        folder = resolve_bundle(bundle, cache_folder(cache_dir))
        drawn = describe(folder, graph)
        damaged = verify_hashes(folder, load_manifest(folder)) if check_hashes else []
    except (SettingsError, BundleError) as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE
    Console().print(drawn)
    if damaged:
        print(f"error: sha256 differs: {', '.join(damaged)}", file=sys.stderr)
        return FAILED
    if check_hashes:
        Console().print("sha256 of every file is the manifest's", style="green", highlight=False)
    return 0
