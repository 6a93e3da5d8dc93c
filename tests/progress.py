"""What a long run is doing, on one line: share of the tests, time, folder. A plugin; workers' tests count too."""

import sys
import time
from pathlib import PurePath

import pytest


class Progress:
    """On a terminal one line that is rewritten; elsewhere, as in a CI log, a line for each folder of tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = time.monotonic()
        self._total = 0
        self._done = 0
        self._failed = 0
        self._folders: set[str] = set()
        self._is_terminal = sys.stdout.isatty()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Know how many tests will run; with workers the session has none of its own."""
        self._total = self._total or len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Know it of a worker: each collects all."""
        self._total = len(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No dot for a test that passed: the line says it. Failures keep their letter."""
        if report.when == "call" and report.passed:
            return "passed", "", "PASSED"
        return None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say which folder the next test is of."""
        folder = PurePath(nodeid.partition("::")[0]).parent.as_posix()
        if self._is_terminal or folder not in self._folders:
            self._folders.add(folder)
            self._write(folder)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count."""
        self._failed += report.failed
        self._done += report.when == "teardown"

    def _write(self, folder: str) -> None:
        seconds = round(time.monotonic() - self._began)
        share = 100 * self._done // max(1, self._total)
        failed = f", {self._failed} failed" if self._failed else ""
        text = f"{share:3} % after {seconds // 60}:{seconds % 60:02}{failed}  {folder}"
        # -s and captured runs alike: pytest's own writer goes to the real stdout.
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return
        if self._is_terminal:
            reporter.rewrite(text, erase=True)
        else:
            reporter.ensure_newline()
            reporter.write_line(text)
