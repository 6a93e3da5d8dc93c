"""GitHub's workflows: what they may do, what they run, and what linters say of them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RUNNERS = {"ubuntu-24.04", "ubuntu-24.04-arm", "windows-2025", "windows-11-arm"}
PINNED = re.compile(r"uses: [\w-]+/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load(
        path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader
    )  # YAML 1.1 reads "on" as true
    return loaded


def jobs() -> list[dict[str, Any]]:
    return [job for path in FILES for job in load(path)["jobs"].values()]


def commands() -> str:
    return "\n".join(step["run"] for job in jobs() for step in job["steps"] if "run" in step)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_says_that_it_has_never_run_and_may_only_read(path: Path) -> None:
    text, loaded = path.read_text(encoding="utf-8"), load(path)
    assert "has never run on these runners" in text.partition("\nname:")[0]
    assert loaded["permissions"] == {"contents": "read"}
    assert "github.ref" in loaded["concurrency"]["group"]
    for job in loaded["jobs"].values():
        assert 0 < int(job["timeout-minutes"]) <= 180 and "permissions" not in job
    assert "secrets." not in text and "pull_request_target" not in loaded["on"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = [
        line.strip().removeprefix("- ") for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line
    ]
    assert used and [line for line in used if not PINNED.fullmatch(line)] == []
    checkouts = [
        step for job in load(path)["jobs"].values() for step in job["steps"] if "checkout" in step.get("uses", "")
    ]
    assert all(step["with"]["persist-credentials"] == "false" for step in checkouts)


def test_they_cover_every_machine_and_every_suite() -> None:
    assert [path.name for path in FILES] == ["long.yml", "tests.yml"]
    quick = load(FILES[1])["jobs"]["quick"]
    assert set(quick["strategy"]["matrix"]["runner"]) == RUNNERS
    assert {job["runs-on"] for job in jobs()} <= RUNNERS | {"${{ matrix.runner }}"}
    for command in (
        "ruff check .",
        "ruff format --check .",
        "python -m mypy",
        "pytest --ignore tests/long --ignore tests/real",
        "make test-all",
    ):
        assert command in commands()


def test_what_they_run_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([\w-]+)", commands())) <= targets
    caches = [
        step["with"]["cache-dependency-path"]
        for job in jobs()
        for step in job["steps"]
        if "cache" in step.get("with", {})
    ]
    assert len(caches) == 2
    for pattern in "\n".join(caches).split():
        assert list(ROOT.glob(pattern)), pattern
    assert (ROOT / "deploy" / "locks" / "dev.txt").is_file() and "-r deploy/locks/dev.txt" in commands()
