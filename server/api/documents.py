"""GET /openapi.json and GET /docs: the API described, for programs and for people."""

import asyncio
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h2{font-size:1.05rem;margin:2rem 0 .3rem;border-top:1px solid #ccc;padding-top:1rem}
code{font:13px ui-monospace,monospace}b.m{display:inline-block;min-width:4rem}
table{border-collapse:collapse;width:100%;margin:.4rem 0}
td,th{border:1px solid #ddd;padding:.2rem .5rem;text-align:left;vertical-align:top}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}td,th,h2{border-color:#444}a{color:#8bf}}
"""
REFERENCE = "#/components/schemas/"
Schema = Mapping[str, Any]


def page(document: Mapping[str, Any]) -> str:
    """The whole page. Everything from the document is escaped."""
    title = "{title} {version}".format(**document["info"])
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>",
        '<p>The same as JSON: <a href="openapi.json">openapi.json</a>.</p>',
    ]
    if document["components"].get("securitySchemes"):
        parts.append("<p>Requests need an API key: <code>Authorization: Bearer YOUR_KEY</code>.</p>")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _operation(path, method, operation)
    parts.append("<h1>Schemas</h1>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += _model(name, schema)
    return "".join(parts)


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'<h2><b class="m">{escape(method.upper())}</b> <code>{escape(path)}</code></h2>'
    yield f"<p>{escape(operation.get('description', ''))}</p>"
    for content in operation.get("requestBody", {}).get("content", {}).values():
        yield f"<p>Body: {_type(content['schema'])}</p>"
    yield "<table><tr><th>status<th>answer<th>content"
    for status, response in operation["responses"].items():
        kinds = [
            f"<code>{escape(kind)}</code> {_type(content.get('schema', {}))} {_type(content.get('x-event-schema', {}))}"
            for kind, content in response.get("content", {}).items()
        ]
        yield f"<tr><td>{escape(status)}<td>{escape(response['description'])}<td>{'<br>'.join(kinds)}"
    yield "</table>"


def _model(name: str, schema: Schema) -> Iterator[str]:
    yield f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{escape(schema.get("description", ""))}</p>'
    if not (properties := schema.get("properties")):
        return
    required = schema.get("required", ())
    yield "<table><tr><th>field<th>type<th>"
    for field, inner in properties.items():
        need = "required" if field in required else ""
        yield f"<tr><td><code>{escape(field)}</code><td>{_type(inner)}<td>{need}"
    yield "</table>"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(REFERENCE))
        return f'<a href="#{name}">{name}</a>'
    for key, between in (("anyOf", " or "), ("oneOf", " or "), ("allOf", " and ")):
        if key in schema:
            return between.join(_type(part) for part in schema[key])
    if "const" in schema:
        return f"<code>{escape(repr(schema['const']))}</code>"
    if "enum" in schema:
        return " or ".join(f"<code>{escape(repr(value))}</code>" for value in schema["enum"])
    kind = escape(str(schema.get("type", "")))
    if "items" in schema:
        kind = f"array of ({_type(schema['items'])})"
    limits = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "minLength", "maxLength", "pattern")
    shown = [f"{key} {escape(str(schema[key]))}" for key in (*limits, "minItems", "maxItems") if key in schema]
    return f"{kind} ({', '.join(shown)})" if shown else kind


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
