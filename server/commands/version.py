"""Which hexserve this is."""

import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PROJECT_FILE = Path(__file__).parents[2] / "pyproject.toml"
UNKNOWN = "unknown"


def version_text(project_file: Path = PROJECT_FILE) -> str:
    """Version of the installed distribution; of a checkout that is not installed, what its pyproject.toml says."""
    with suppress(PackageNotFoundError):
        return version("hexserve")
    try:
        project = tomllib.loads(project_file.read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return UNKNOWN
    return str(project.get("version", UNKNOWN)) if project.get("name") == "hexserve" else UNKNOWN
