"""GET /openapi.json and GET /docs: the API described, for programs and for people."""

import asyncio

import msgspec
from fastapi import APIRouter, Request, Response

from server.http.docs_page import page

router = APIRouter()
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@router.get("/openapi.json", response_class=Response, responses={200: {"content": {"application/json": {}}}})
async def openapi(request: Request) -> Response:
    """This document."""
    document = await asyncio.to_thread(request.app.state.document.read)
    return Response(msgspec.json.encode(document), media_type="application/json")


@router.get("/docs", response_class=Response, responses={200: {"content": {"text/html": {}}}})
async def docs(request: Request) -> Response:
    """This document for people; it loads nothing from anywhere."""
    headers = {"Content-Security-Policy": PAGE_POLICY}
    document = await asyncio.to_thread(request.app.state.document.read)
    return Response(page(document), media_type="text/html", headers=headers)
