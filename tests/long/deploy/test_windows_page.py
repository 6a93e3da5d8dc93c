"""The Windows quickstart, line by line as far as Linux can: each line is run here, or it is named why it cannot be."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.test_windows_page import INSTALLS, ROOT


@pytest.mark.skipif(sys.platform == "win32", reason="runs Linux's half of the page")
def test_the_page_installs_and_serves_from_an_empty_home(tmp_path: Path) -> None:
    kept = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    environment = {**kept, "PIP_COMPILE": "0", "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    place = tmp_path / "place"
    place.mkdir()
    for name in ("deploy", "engine", "server", "pyproject.toml", "README.md", "LICENSE"):
        (place / name).symlink_to(ROOT / name)
    for line in INSTALLS[:3]:
        python = place / ".venv" / "bin" / "python"
        command = [str(python) if python.exists() else sys.executable, *shlex.split(line)[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place, env=environment)
        assert done.returncode == 0, done.stderr
    asked = subprocess.run(
        [place / ".venv" / "bin" / "hexserve", "run", "demo"],
        input="What is the capital of France?\n", capture_output=True, text=True, check=False, cwd=tmp_path,
        env=environment,
    )  # fmt: skip
    assert asked.returncode == 0 and "Paris" in asked.stdout, asked.stderr
