"""What the app is given, and what it must not look for itself."""

from hashlib import sha256
from pathlib import Path

import httpx

from engine.config import EngineConfig
from server.middleware.auth import ApiKey, KeyRing
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import ScriptedEngine


async def test_keys_are_read_once_before_the_app_is_made(tmp_path: Path) -> None:
    """So a key file may be a pipe, and no request meets other keys than those that were there at the start."""
    settings = Settings(EngineConfig("unused"), api_keys="other:sk-other", api_key_file=str(tmp_path / "gone"))
    app = create_app(settings, ScriptedEngine(), KeyRing([ApiKey("anna", sha256(b"sk-anna").digest())]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        statuses = [
            (await client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})).status_code
            for key in ("sk-anna", "sk-other")
        ]
    assert statuses == [200, 401]
