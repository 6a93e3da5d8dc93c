"""The load test of deploy/ against `make serve`, as an operator would run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live import watching

ROOT = Path(__file__).parents[3]


def test_sixteen_users_against_make_serve(tmp_path: Path) -> None:
    # make passes its own flags on through the environment; this is a fresh call.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    serve = ["make", "serve", "PORT=0", f"PYTHON={sys.executable}"]
    if not (ROOT / ".venv").exists():
        pytest.fail("make test-all sets up .venv; run the tests through it")
    with watching(serve, environment, cwd=ROOT) as server:
        load = subprocess.run(
            [
                *(sys.executable, "-m", "locust", "-f", "deploy/locustfile.py", "--headless", "--only-summary"),
                *("-u", "16", "-r", "16", "-t", "8s", "--host", server.url, "--csv", str(tmp_path / "load")),
            ],
            capture_output=True,
            text=True,
            timeout=180,
            cwd=ROOT,
            env=environment,
            check=False,
        )
        print(load.stdout[-3000:], load.stderr[-3000:])
        assert load.returncode == 0
        assert server.metric("vllm:generation_tokens_total") > 0
        assert "0(0.00%)" in load.stdout + load.stderr
