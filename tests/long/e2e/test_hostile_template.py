"""A bundle whose chat template never ends: its request is a 400, the next one is served, SIGTERM ends everything."""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import httpx
import msgspec
import pytest

from engine.bundle.manifest import describe_file, load_manifest, save_manifest
from tests.bundles import Bundles, bundles
from tests.live import serving

__all__ = ["bundles"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks its processes up in /proc")
LOOP = (
    "{% if messages[0].content == 'attack' %}"
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{% else %}{{ messages[0].content }}{% endif %}"
)
TICKS = 5  # of 10 ms: a renderer that has used so much more is inside the loop


@pytest.fixture
def hostile(bundles: Bundles, tmp_path: Path) -> Path:
    folder = shutil.copytree(bundles("free"), tmp_path / "hostile")
    manifest = load_manifest(folder)
    assert manifest.text.chat_template is not None
    template = folder / manifest.text.chat_template
    template.write_text(LOOP, encoding="utf-8")
    files = {**manifest.files, template.name: describe_file(template)}
    save_manifest(folder, msgspec.structs.replace(manifest, files=files))
    return folder


def body(content: str) -> dict[str, object]:
    return {"model": "hostile", "messages": [{"role": "user", "content": content}], "max_tokens": 2}


def renderers(server: int) -> dict[int, int]:
    """Processor ticks by process id of the server's renderers."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == server and b"engine.text.renderer" in (entry / "cmdline").read_bytes():
                found[int(entry.name)] = int(fields[11])
        except (OSError, IndexError):
            continue
    return found


def test_the_request_is_a_400_and_the_next_one_is_served(hostile: Path) -> None:
    options = ("--model-name", "hostile", "--prepare-timeout-s", "0.5")
    with serving("--bundle", str(hostile), *options) as server, httpx.Client(base_url=server.url) as client:
        assert len(renderers(server.process.pid)) == 1  # warm before any request
        chat = body("attack")
        for path, fields in (("/v1/chat/completions", chat), ("/tokenize", {"messages": chat["messages"]})):
            answer = client.post(path, json=fields)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "messages")
            assert error["message"] == "The chat template ran for more than 0.5 s."
            assert client.post("/v1/chat/completions", json=body("hello")).status_code == 200
        assert client.get("/health/ready").status_code == 200


async def test_sigterm_ends_a_template_that_loops(hostile: Path) -> None:
    options = ("--model-name", "hostile", "--prepare-timeout-s", "600")
    with serving("--bundle", str(hostile), *options) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            (idle,) = renderers(server.process.pid).values()
            looping = asyncio.create_task(client.post("/v1/chat/completions", json=body("attack")))
            while max((pids := renderers(server.process.pid)).values()) < idle + TICKS:
                await asyncio.sleep(0.05)
            server.process.send_signal(signal.SIGTERM)
            assert (await looping).status_code == 503
            assert await asyncio.to_thread(server.process.wait, 20) == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
