"""GET / and its files: a chat in the browser, a live picture of the steps. Only what lies in the folder is served."""

from collections.abc import Mapping
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.staticfiles import StaticFiles

FOLDER = Path(__file__).parent / "static"
# Said here: what Windows' registry says of scripts may be anything.
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Path on the server -> file and media type.
LISTED: Mapping[str, tuple[str, str]] = {
    "/" if file.name == "index.html" else f"/page/{file.name}": (file.name, TYPES[file.suffix])
    for file in sorted(FOLDER.iterdir())
}
PATHS = frozenset(LISTED)
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
_files = StaticFiles(directory=FOLDER)


@router.get("/", response_class=Response, include_in_schema=False)
@router.get("/page/{name}", response_class=Response, include_in_schema=False)
async def page_file(request: Request) -> Response:
    """One file of the page; 304 when the browser has it already, 404 for what is none."""
    name, media_type = LISTED.get(request.scope["path"], ("", ""))
    if not name:
        raise HTTPException(404)
    answer = await _files.get_response(name, request.scope)
    answer.headers.update(HEADERS)
    if answer.status_code == 200:
        answer.headers["Content-Type"] = media_type
    return answer
