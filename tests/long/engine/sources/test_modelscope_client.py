"""ModelScope's own client as the oracle of its protocol: the same server, the same questions, the same files."""

import os
import subprocess
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from engine.sources.resolve import locate
from tests.clients.environments import python_with
from tests.engine.sources.fake_hub import FakeHub

CLIENT = "modelscope-hub==0.5.1\n"
FETCH = """
import sys
from modelscope_hub.compat.snapshot_download import snapshot_download
snapshot_download("org/tiny", revision="master", local_dir=sys.argv[1], endpoint=sys.argv[2], token=sys.argv[3] or None)
"""
FILES = {"config.json": b"{}", "tokenizer.json": b"{ }", "model.safetensors": bytes(range(256)) * 40}
ABOUT_FILES = "/api/v1/models/org/tiny/repo"


def questions(asked: list[str]) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """Paths and parameters about a repository's files; what the client asks beside is its own affair."""
    split = [urlsplit(path) for path in asked]
    return {(each.path, frozenset(parse_qsl(each.query))) for each in split if each.path.startswith(ABOUT_FILES)}


@pytest.mark.parametrize("token", ["", "ours"])
def test_its_own_client_asks_the_same(
    token: str, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["org/tiny"] = dict(FILES)
    hub.token = token
    theirs = tmp_path / "theirs"
    environment = {**os.environ, "HOME": str(tmp_path), "NO_PROXY": "*"}
    command = [python_with("modelscope", CLIENT), "-c", FETCH, theirs, hub.url, token]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    asked = questions(hub.asked)
    assert len(asked) == 1 + len(FILES)
    hub.asked.clear()
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.url)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", token)
    ours = locate("ms:org/tiny", tmp_path / "cache").path
    assert questions(hub.asked) == asked
    for name, content in FILES.items():
        assert (ours / name).read_bytes() == (theirs / name).read_bytes() == content
