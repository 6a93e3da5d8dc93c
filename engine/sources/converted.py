"""The bundle made of a Genie folder, kept in the cache as long as neither the folder nor this software changes."""

from pathlib import Path

from engine.bundle.manifest import load_manifest
from engine.errors import BundleError
from engine.genie.convert import Toolbox, conversion_key, machine_tools, write_converted
from engine.genie.read import read_genie
from engine.sources.publish import draft_beside, publish
from engine.sources.retention import mark_used


def convert_folder(folder: Path, cache: Path, tools: Toolbox | None = None) -> Path:
    """The bundle folder made of a Genie folder, made again when its files or this software change.

    Raises BundleError for what cannot be served and for a cache that cannot be written.
    """
    target = cache / f"{folder.resolve().name}-genie-{conversion_key(folder)}"
    mark_used(target)
    if is_good(target):
        return target
    tools = tools or machine_tools(cache)
    bundle = read_genie(folder, tools.describe, tools.runtime)
    try:
        with draft_beside(target) as draft:
            write_converted(bundle, draft)
            publish(draft, target, replaces=lambda found: not is_good(found))
    except OSError as error:
        raise BundleError(f"the bundle cache {cache} cannot be used: {error.strerror or error}") from error
    return target


def is_good(folder: Path) -> bool:
    """Whether a finished bundle with all its files lies there."""
    try:
        load_manifest(folder)
    except BundleError:
        return False
    return True
