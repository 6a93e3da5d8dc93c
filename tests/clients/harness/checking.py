"""For `checks.py` of a client: runs in the client's own environment, so only the standard library.

Every function marked with `check` is one check; it passes when it returns. `run()` runs them all and prints one line
of JSON: a list of {name, ok, detail}. Names are read from the source by the tests, so a check is never lost silently.
"""

import asyncio
import inspect
import json
import os
import traceback
from collections.abc import Callable
from typing import Any

CHECKS: dict[str, Callable[[], Any]] = {}
MODEL = os.environ.get("OPENAI_MODEL", "")


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register a check; it may be a coroutine function."""
    CHECKS[function.__name__] = function
    return function


def base_url(server: str) -> str:
    """Address of a server named in the script's line `# servers:`, with /v1."""
    return os.environ[f"{server.upper()}_URL"]


def run() -> None:
    """Run every check; one that fails does not stop the others."""
    found = []
    for name, function in CHECKS.items():
        detail = ""
        try:
            made = function()
            if inspect.isawaitable(made):
                asyncio.run(_awaited(made))
        except Exception:  # noqa: BLE001 (whatever a client raises is the finding)
            detail = traceback.format_exc()
        found.append({"name": name, "ok": not detail, "detail": detail})
    print(json.dumps(found))


async def _awaited(made: Any) -> None:
    await made
