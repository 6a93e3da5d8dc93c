"""langchain's standard tests, run by pytest inside a client's environment; the outcome of each is looked up."""

import os
import re
from functools import cache
from pathlib import Path

import pytest

# One run with one event loop: langchain keeps its asynchronous connections for the life of the process.
OPTIONS = ["asyncio_mode=auto", "asyncio_default_test_loop_scope=session", "asyncio_default_fixture_loop_scope=session"]


class Outcomes:
    """What became of each test, and why; a plugin of pytest."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of a test; one that is skipped says so before it is called."""
        if report.when == "call" or not report.passed:
            outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
            self.found[report.nodeid.partition("::")[2]] = outcome, report.longreprtext

    def of(self, name: str, outcome: str) -> list[str]:
        """Tests of a class with an outcome, without the class."""
        return [
            test.removeprefix(f"{name}::")
            for test, (one, _) in self.found.items()
            if one == outcome and test.startswith(f"{name}::")
        ]


@cache
def outcomes(suite: Path) -> Outcomes:
    """All classes of a file, run once."""
    plugin = Outcomes()
    options = [word for option in OPTIONS for word in ("-o", option)]
    arguments = [str(suite), "--noconftest", "-c", os.devnull, "--rootdir", str(suite.parent), "-q", *options]
    pytest.main([*arguments, "-p", "no:cacheprovider", "--benchmark-disable"], plugins=[plugin])
    return plugin


def judge(suite: Path, name: str, absent: set[str], least: int) -> None:
    """Judge one class: nothing fails, nothing is expected to fail, what skips is absent, at least so many pass."""
    found = outcomes(suite)
    assert not found.of(name, "failed"), [found.found[f"{name}::{test}"] for test in found.of(name, "failed")]
    assert not found.of(name, "xfailed")
    skipped = {re.sub(r"\[.*", "", test) for test in found.of(name, "skipped")}
    assert skipped == absent, skipped ^ absent
    assert len(found.of(name, "passed")) >= least
