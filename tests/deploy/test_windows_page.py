"""The Windows quickstart, line by line as far as Linux can: each line is run here, or it is named why it cannot be."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
from typer.testing import CliRunner

from server.commands.cli import app
from tests.live import serving

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart" / "windows.md").read_text(encoding="utf-8")
# What runs in an environment of its own, with its packages from the index.
INSTALLS = (
    "python -m venv .venv",
    "python -m pip install --require-hashes -r deploy/locks/compile.txt",
    "python -m pip install --no-build-isolation --no-deps .",
    "python -m pip install --require-hashes -r deploy/locks/qnn.txt",
)
# What other tests run: real weights, another system's devices, the emulator.
ELSEWHERE = {
    "hexserve run smollm2": "tests/real/test_run.py",
    "hexserve serve smollm2": "tests/real/test_run.py",
    "hexserve doctor": "tests/server/commands/test_doctor.py",
    "hexserve compile demo --target x-elite --rows 1,32 --context 512 -o demo-npu": "tests/long/test_readme.py",
    "hexserve serve demo-npu": "tests/long/npu/test_server.py",
}
MACHINE = 'python -c "import platform; print(platform.machine())"'


def lines() -> list[str]:
    """Every line of PowerShell on the page, with Linux's names of the same programs."""
    blocks = re.findall(r"```powershell\n(.*?)```", PAGE, re.DOTALL)
    found = [line.strip() for block in blocks for line in block.splitlines() if line.strip()]
    return [re.sub(r"^(py -3\.12|\.venv\\Scripts\\python)", "python", line) for line in found]


def same(line: str) -> str:
    """The line without the folder of programs, and with Linux's slashes."""
    return line.replace(".venv\\Scripts\\", "").replace("\\", "/")


def test_every_line_is_known() -> None:
    requests = [line for line in lines() if line.startswith(("$", "Invoke-"))]
    commands = [same(line) for line in lines() if line not in requests]
    assert len(requests) == 2 and len(commands) == len(set(commands))
    assert set(commands) == {MACHINE, *INSTALLS, *ELSEWHERE}
    assert [test for test in ELSEWHERE.values() if not (ROOT / test).exists()] == []


def test_what_needs_no_environment_runs() -> None:
    done = subprocess.run([sys.executable, *shlex.split(MACHINE)[1:]], capture_output=True, text=True, check=True)
    assert done.stdout.strip()
    for line in ELSEWHERE:
        assert CliRunner().invoke(app, [shlex.split(line)[1], "--help"]).exit_code == 0


def test_the_request_is_answered() -> None:
    """Said in PowerShell; the address, the body and its type are taken from the page."""
    body, call = (line for line in lines() if line.startswith(("$", "Invoke-")))
    content = json.loads(body.partition(" = ")[2].strip("'"))
    url, method, kind = re.fullmatch(  # type: ignore[union-attr]
        r"Invoke-RestMethod (\S+) -Method (\w+) -ContentType (\S+) -Body \$body", call
    ).groups()
    with serving("--bundle", "demo", "--model-name", content["model"]) as live:
        address = url.replace("http://127.0.0.1:8000", live.url)
        answer = httpx.request(method, address, json=content, headers={"Content-Type": kind}, timeout=60)
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"]
