"""tools/proofs/prove_image.sh needs root and container tools; what can be wrong without them is checked here."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tools" / "proofs" / "prove_image.sh"
TEXT = SCRIPT.read_text(encoding="utf-8")

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", ["tools/proofs/prove_image.sh", "deploy/locks/remake.sh", "deploy/smoke.sh"])
def test_bash_can_read_it(script: str) -> None:
    done = subprocess.run(["bash", "-n", str(ROOT / script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["--arm65"], "error: unknown option --arm65"), (["--mirror"], "error: --mirror needs a value")],
)
def test_a_wrong_command_line_is_refused_before_anything_is_made(arguments: list[str], sentence: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == sentence


def test_every_option_is_explained() -> None:
    taken = set(re.findall(r"^ +(?:-h \| )?(--[a-z0-9-]+)\)", TEXT, re.MULTILINE)) - {"--help"}
    done = run("--help")
    assert done.returncode == 0
    assert set(re.findall(r"^  (--[a-z0-9-]+)", done.stdout, re.MULTILINE)) == taken


def test_it_asks_what_the_readme_asks() -> None:
    """The script takes the first command that begins with curl, up to the end of its block."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = readme[readme.index("\ncurl ") + 1 :].split("\n```")[0]
    found = subprocess.run(
        ["bash", "-c", "sed -n '/^curl /,/^```/p' README.md | sed '/^```/,$d'"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == lines.strip()
    assert "sed -n '/^curl /,/^```/p'" in TEXT
    assert "http://127.0.0.1:8000" in lines


def test_it_names_no_place_that_packages_come_from() -> None:
    assert set(re.findall(r"https?://[^\s\"'#/]+", TEXT)) <= {"http://127.0.0.1:$port", "http://127.0.0.1:8000"}
