"""Running the system's own tools: systemctl, loginctl, schtasks."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from engine.processes import child_environment

TIMEOUT_S = 120.0  # starting a unit waits for the program to be executed, no longer


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a tool ended and what it wrote."""

    code: int
    output: str
    errors: str

    @property
    def reason(self) -> str:
        """The last line it complained with."""
        lines = [line.strip() for line in (self.errors.strip() or self.output.strip()).splitlines()]
        return lines[-1] if lines else f"it ended with status {self.code}"


def run_tool(words: Sequence[str]) -> ToolResult:
    """Run a tool that is known to be there; output that is no text is replaced."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )
    except subprocess.TimeoutExpired:
        return ToolResult(-1, "", f"{words[0]} did not answer within {TIMEOUT_S:g} s")
    return ToolResult(done.returncode, done.stdout, done.stderr)


def has_tool(name: str) -> bool:
    """Whether a tool is on the PATH."""
    return shutil.which(name) is not None
