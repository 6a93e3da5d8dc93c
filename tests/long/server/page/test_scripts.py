"""The page's pure scripts (markdown to a tree, events, answers, branches, steps) under `node --test`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from server.page.files import FOLDER
from tests.clients.environments import node_program

SUITES = sorted(Path(__file__).parent.glob("*.test.mjs"))
PATIENCE_S = 120


@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.name.removesuffix(".test.mjs"))
def test_a_script(suite: Path, tmp_path: Path) -> None:
    page = tmp_path / "page"
    shutil.copytree(FOLDER, page)
    (page / "package.json").write_text('{"type": "module"}')  # as the browser takes them
    shutil.copyfile(suite, tmp_path / suite.name)
    done = subprocess.run(
        [str(node_program()), "--test", suite.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# pass 0\n" not in done.stdout


def test_there_are_suites() -> None:
    assert len(SUITES) >= 5
