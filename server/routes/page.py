"""GET / and its files: a chat in the browser, and a live picture of the passes. It loads nothing from anywhere else."""

from collections.abc import Mapping
from typing import cast

from fastapi import APIRouter, HTTPException, Request, Response

from server.page.files import PageFile

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
