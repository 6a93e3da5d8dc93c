"""The files of the page, read once. Only what is listed here is served."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

FOLDER = Path(__file__).parent / "static"
SCRIPTS = (
    *("early", "main", "api", "sse", "keys", "theme", "elements"),
    *("markdown", "inline", "render", "answer", "conversation", "store", "chat"),
    *("sidebar", "message", "thread", "composer", "dialogs", "pass_history", "pass_picture", "pass_panel"),
)
# Path on the server -> file and media type.
LISTED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "/": ("index.html", "text/html"),
        "/page/style.css": ("style.css", "text/css"),
        "/page/parts.css": ("parts.css", "text/css"),
        "/page/icon.svg": ("icon.svg", "image/svg+xml"),
        **{f"/page/{name}.js": (f"{name}.js", "text/javascript") for name in SCRIPTS},
    }
)
PATHS = frozenset(LISTED)


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent; `tag` is its entity tag with the quotes."""

    content: bytes
    media_type: str
    tag: str


def read_page() -> Mapping[str, PageFile]:
    """Every file of the page by its path on the server."""
    return {path: _read(FOLDER / name, media_type) for path, (name, media_type) in LISTED.items()}


def _read(file: Path, media_type: str) -> PageFile:
    content = file.read_bytes()
    return PageFile(content, media_type, f'"{sha256(content).hexdigest()[:32]}"')
