"""No command of ours lets onnxruntime write a device id or a database of events: its wheels do so by default."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.live import watching


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Empty home and temporary folders; without a developer's choices, and without CI, where nothing is written."""
    kept = {key: text for key, text in os.environ.items() if not key.startswith(("XDG_", "HEXSERVE_", "ORT_", "CI"))}
    for name in ("home", "temporary", "cache"):
        (tmp_path / name).mkdir()
    own = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary")}
    return {**kept, **own, "HEXSERVE_CACHE_DIR": str(tmp_path / "cache")}


def left(places: dict[str, str]) -> list[str]:
    """Files below the home and the temporary folder."""
    folders = (Path(places["HOME"]), Path(places["TMPDIR"]))
    return [path.relative_to(folder).as_posix() for folder in folders for path in folder.rglob("*") if path.is_file()]


def test_onnxruntime_alone_would_write(places: dict[str, str]) -> None:
    """What this guards against; when it fails, onnxruntime has changed and the rest proves less than it says."""
    code = "import onnxruntime; onnxruntime.SessionOptions()"
    subprocess.run([sys.executable, "-c", code], env=places, check=True)
    assert any("onnxruntime" in name for name in left(places))


def test_no_command_leaves_anything(places: dict[str, str], tiny_checkpoint: Path, tmp_path: Path) -> None:
    hexserve = [sys.executable, "-P", "-m", "server"]
    bundle = tmp_path / "bundle"
    making = ["compile", str(tiny_checkpoint), "-o", str(bundle), "--quality", "fast"]
    for arguments in (making, ["inspect", str(bundle)], ["doctor"]):
        subprocess.run([*hexserve, *arguments], env=places, check=True, capture_output=True)
    with watching([*hexserve, "serve", str(bundle), "--port", "0"], places) as server:
        body = {"model": "bundle", "prompt": [1, 2, 3], "max_tokens": 2}
        model = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
        assert httpx.post(f"{server.url}/v1/completions", json={**body, "model": model}).status_code == 200
        bench = ["bench", server.url, "--clients", "1", "--requests-per-client", "1", "--max-tokens", "2"]
        subprocess.run([*hexserve, *bench], env=places, check=True, capture_output=True)
    assert left(places) == []
