"""The reference pages name every route that is served."""

import re
from pathlib import Path

from engine.config import EngineConfig
from server.middleware.auth import KeyRing
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import ScriptedEngine

PAGES = (Path(__file__).parents[2] / "docs" / "reference").glob("*.md")


def test_every_route_stands_in_the_reference() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    served = create_app(Settings(EngineConfig("")), ScriptedEngine(), KeyRing()).openapi()["paths"]
    routes = {re.sub(r"\{\w+\}", "{id}", path) for path in served}
    assert len(routes) > 25
    assert [route for route in sorted(routes) if not re.search(re.escape(route) + r"[`?\s]", text)] == []
