"""smoke.sh tells a server that works from one that does not."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.commands.scripted_server import Script, serving

SMOKE = Path(__file__).parents[2] / "deploy" / "smoke.sh"

pytestmark = pytest.mark.skipif(not (shutil.which("bash") and shutil.which("curl")), reason="needs bash and curl")


def smoke(address: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", str(SMOKE), address],
        capture_output=True, text=True, timeout=60, env={**os.environ, **environment}, check=False,
    )  # fmt: skip


def test_a_good_server() -> None:
    with serving(Script(words=("Paris", ' "is"', " it."), api_key="k")) as address:
        done = smoke(address + "/", OPENAI_API_KEY="k")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines == ["health  ok", "model   scripted", 'chat    Paris \\"is\\" it.', "stream  6 chunks"]


@pytest.mark.parametrize("behaviours", [["broken"], ["ok", "broken"], ["ok", "midstream"], ["ok", "cut"]])
def test_a_bad_server(behaviours: list[str]) -> None:
    with serving(Script(behaviours)) as address:
        done = smoke(address)
    assert done.returncode != 0
    assert "FAILED" in done.stderr


def test_no_server() -> None:
    assert smoke("http://127.0.0.1:9").returncode != 0
