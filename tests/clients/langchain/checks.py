"""langchain-openai judges with langchain's own standard tests: `standard_suite.py` run by pytest, a check per route."""

# servers: thinks

import os
import re
from functools import cache
from pathlib import Path

import pytest
from checking import check, run

SUITE = Path(__file__).with_name("standard_suite.py")
# What is declared absent in `standard_suite.py`, and the tests that therefore skip themselves.
DECLARED = {
    "model override": {
        "test_invoke_with_model_override",
        "test_ainvoke_with_model_override",
        "test_stream_with_model_override",
        "test_astream_with_model_override",
    },
    "images": {"test_image_inputs", "test_image_tool_message"},
    "PDF": {"test_pdf_inputs", "test_pdf_tool_message"},
    "audio": {"test_audio_inputs"},
    "messages in Anthropic's shape": {"test_anthropic_inputs"},
    "recordings of HTTP": {"test_stream_time"},
}
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
def outcomes() -> Outcomes:
    """All classes, run once."""
    plugin = Outcomes()
    options = [word for option in OPTIONS for word in ("-o", option)]
    arguments = [str(SUITE), "--noconftest", "-c", os.devnull, "--rootdir", str(SUITE.parent), "-q", *options]
    pytest.main([*arguments, "-p", "no:cacheprovider", "--benchmark-disable"], plugins=[plugin])
    return plugin


def standard(name: str) -> None:
    """Judge one class: nothing fails, nothing is expected to fail, what skips is declared absent."""
    found = outcomes()
    assert not found.of(name, "failed"), [found.found[f"{name}::{test}"] for test in found.of(name, "failed")]
    assert not found.of(name, "xfailed")
    skipped = {re.sub(r"\[.*", "", test) for test in found.of(name, "skipped")}
    assert skipped == set().union(*DECLARED.values()), skipped
    assert len(found.of(name, "passed")) >= 39


@check
def standard_chat() -> None:
    standard("TestChat")


@check
def standard_chat_structured_by_calling() -> None:
    standard("TestChatByCalling")


@check
def standard_responses() -> None:
    standard("TestResponses")


if __name__ == "__main__":
    os.environ["LANGSMITH_TRACING"] = "false"
    run()
