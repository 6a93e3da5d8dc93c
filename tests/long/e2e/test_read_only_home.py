"""Homes and caches that cannot be written, as an ordinary account meets them: permissions mean nothing to root."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from engine.sources.resolve import resolve_bundle
from tests.live import watching

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
# Linux: without the two capabilities to pass over permissions (PR_CAPBSET_DROP), root is as bound by them as anybody.
BOUND_BY_PERMISSIONS = """
import ctypes, os, sys
if sys.platform == "linux":
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
PYTHON = [sys.executable, "-c", BOUND_BY_PERMISSIONS]
SERVE = [*PYTHON, "-m", "server", "serve", "--port", "0"]


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder, and all in it, that nobody can write to."""
    below = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in below:
        path.chmod(0o555)
    try:
        write = f"open({str(folder / 'x')!r}, 'w')"
        if subprocess.run([*PYTHON, "-c", write], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            pytest.skip("this account writes where it must not")
        yield
    finally:
        for path in below:
            path.chmod(0o755)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "home"
    made.mkdir()
    with read_only(made):
        yield made
        assert list(made.iterdir()) == []


def environment(home: Path) -> dict[str, str]:
    """Of an account whose home is its only place for a cache."""
    kept = {key: text for key, text in os.environ.items() if not key.startswith(("XDG_", "HEXSERVE_"))}
    return {**kept, "HOME": str(home)}


def assert_answers(url: str) -> None:
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": [5, 17, 99], "max_tokens": 3, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3


def test_a_bundle_is_served_from_a_home_that_cannot_be_written(free_bundle: Path, home: Path) -> None:
    with watching([*SERVE, str(free_bundle)], environment(home)) as server:
        assert_answers(server.url)
        said = "\n".join(server.lines)
        assert "step times cannot be remembered" in said and "Traceback" not in said
    assert server.process.returncode == 0


def test_what_has_to_be_compiled_is_one_sentence(tiny_checkpoint: Path, home: Path) -> None:
    done = subprocess.run(
        [*SERVE, str(tiny_checkpoint)], env=environment(home), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the bundle cache ") and "cache_dir names another" in line


def test_a_bundle_is_served_from_a_cache_that_cannot_be_written(
    tiny_checkpoint: Path, tmp_path: Path, home: Path
) -> None:
    cache = tmp_path / "cache"
    resolve_bundle(str(tiny_checkpoint), cache)
    with (
        read_only(cache),
        watching([*SERVE, str(tiny_checkpoint), "--cache-dir", str(cache)], environment(home)) as server,
    ):
        assert_answers(server.url)
        assert "Traceback" not in "\n".join(server.lines)
    assert server.process.returncode == 0
