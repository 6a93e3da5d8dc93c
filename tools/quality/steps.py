"""Commands that a benchmark runs one after the other, each under a name."""

import subprocess

from rich.console import Console

from engine.processes import child_environment
from tools.peers.setup import SetupFailed


class QualitySteps:
    """Tells the name of each step, and what went wrong."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def run(self, step: str, command: list[str]) -> str:
        """Run a command; what it printed. SetupFailed with the last of it when it does not succeed."""
        self._console.print(f"{step} ...", markup=False, highlight=False)
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=child_environment()
        )
        if done.returncode:
            raise SetupFailed(f"{step} failed: {' '.join((done.stdout + done.stderr).split()[-60:])}")
        return done.stdout + done.stderr
