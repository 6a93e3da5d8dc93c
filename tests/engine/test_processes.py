"""How processes end, in words, and whether one runs."""

import ctypes
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from engine.processes import exit_text, process_is_alive


def test_ends_are_told_in_words() -> None:
    assert exit_text(0) == "exited with status 0"
    assert exit_text(-11) == "was killed by SIGSEGV"
    assert exit_text(0xC0000005) == "crashed with status 0xC0000005"
    assert exit_text(None) == "ended with an unknown status"


def test_liveness() -> None:
    """Ourselves, the parent, nobody."""
    assert process_is_alive(os.getpid()) and process_is_alive(os.getppid())
    assert not process_is_alive(999_999_999) and not process_is_alive(0) and not process_is_alive(-1)


class FakeKernel:
    """The four calls of the Windows kernel that the liveness check makes, over a table of exit codes."""

    def __init__(self, exit_codes: dict[int, int], hidden: int) -> None:
        self.exit_codes, self.hidden, self.open_handles, self.error = exit_codes, hidden, 0, 0

    def OpenProcess(self, access: int, inherit: bool, process_id: int) -> int:  # noqa: N802
        self.error = 5 if process_id == self.hidden else 87
        known = process_id in self.exit_codes
        self.open_handles += known
        return process_id if known else 0

    def GetLastError(self) -> int:  # noqa: N802
        return self.error

    def GetExitCodeProcess(self, handle: int, code: Any) -> int:  # noqa: N802
        code._obj.value = self.exit_codes[handle]
        return 1

    def CloseHandle(self, handle: int) -> int:  # noqa: N802
        self.open_handles -= 1
        return 1


def test_liveness_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the kernel is asked (`os.kill` would end the process): running, ended, someone else's, nobody."""
    kernel = FakeKernel({7: 259, 8: 1}, hidden=9)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("killed"))
    assert [process_is_alive(process_id) for process_id in (7, 8, 9, 10)] == [True, False, True, False]
    assert kernel.open_handles == 0
