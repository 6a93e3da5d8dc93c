"""GET / and its files: a chat in the browser, and a live picture of the steps. Only what is listed here is served."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import cast

from fastapi import APIRouter, HTTPException, Request, Response

FOLDER = Path(__file__).parent / "static"
SCRIPTS = (
    *("early", "main", "api", "sse", "keys", "theme", "elements"),
    *("markdown", "inline", "render", "answer", "conversation", "store", "chat"),
    *("sidebar", "message", "thread", "composer", "pictures", "dialogs", "step_history", "step_picture", "step_panel"),
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


router = APIRouter()
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@router.get("/", response_class=Response, include_in_schema=False)
@router.get("/page/{name}", response_class=Response, include_in_schema=False)
async def page_file(request: Request) -> Response:
    """One file of the page; 304 when the browser has it already, 404 for what is none."""
    files = cast(Mapping[str, PageFile], request.app.state.page)
    file = files.get(request.scope["path"])
    if file is None:
        raise HTTPException(404)
    headers = {**HEADERS, "ETag": file.tag}
    if file.tag in _tags(request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


def _tags(text: str) -> frozenset[str]:
    """Tags of an If-None-Match header; a proxy that compresses makes them weak."""
    return frozenset(tag.strip().removeprefix("W/") for tag in text.split(","))
