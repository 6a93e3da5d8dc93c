"""Chunks -> lines of JSON (NDJSON), Ollama's framing."""

from typing import Any

import msgspec

from server.http.sse import Framing


def line(payload: dict[str, Any]) -> bytes:
    """One chunk."""
    return msgspec.json.encode(payload) + b"\n"


# Readers parse every line, so an empty one would be an error; white space in front of the next object is none.
LINES = Framing("application/x-ndjson", line, b" ")
