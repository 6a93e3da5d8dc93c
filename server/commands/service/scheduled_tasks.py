"""Services as scheduled tasks of Windows, started when their user logs on."""

import csv
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from server.commands.service.definition import ServiceDefinition, ServiceError, ServiceState
from server.commands.service.run_tool import ToolResult, has_tool, run_tool
from server.commands.service.task_text import task_text

LAST_RESULT = 6  # column of `schtasks /Query /V /FO CSV`, whose names and texts are in the user's language
RUNNING = "267009"  # SCHED_S_TASK_RUNNING


class ScheduledTasks:
    """Raises ServiceError when this machine has no Task Scheduler."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        if not has_tool("schtasks"):
            raise ServiceError("this machine has no Task Scheduler (schtasks)")
        user, domain = environment.get("USERNAME", ""), environment.get("USERDOMAIN", "")
        self._user = f"{domain}\\{user}" if domain else user
        self._logs = Path(environment.get("LOCALAPPDATA") or Path.home()) / "hexserve"

    def install(self, service: ServiceDefinition) -> Iterator[str]:
        """Create the task, or replace it, and start it; lines for the user."""
        log = self._logs / f"{service.name}.log"
        text = task_text(service, self._user, str(log))
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "task.xml"
                file.write_text(text, encoding="utf-16")
                self._schtasks("/Create", "/TN", service.name, "/XML", str(file), "/F")
        except OSError as error:
            raise ServiceError(f"{self._logs} cannot be written: {error.strerror or error}") from error
        self._schtasks("/Run", "/TN", service.name)
        yield f"created the task {service.name} and started it; its log: {log}"
        yield "it runs while you are logged on, and is started again within a minute when it ends"

    def remove(self, name: str) -> Iterator[str]:
        """End the task, which does not drain, and forget it."""
        if not self.state(name).is_installed:
            raise ServiceError(f"there is no task {name}")
        run_tool(("schtasks", "/End", "/TN", name))  # fails when it does not run
        self._schtasks("/Delete", "/TN", name, "/F")
        yield f"ended and removed the task {name}"

    def state(self, name: str) -> ServiceState:
        """What the Task Scheduler knows of it."""
        shown = run_tool(("schtasks", "/Query", "/TN", name, "/V", "/FO", "CSV", "/NH"))
        rows = [row for row in csv.reader(shown.output.splitlines()) if len(row) > LAST_RESULT]
        if shown.code or not rows:
            return ServiceState(False, False, f"there is no task {name}")
        is_running = any(row[LAST_RESULT] == RUNNING for row in rows)
        text = f"{name}: {'running' if is_running else f'not running, its last result was {rows[0][LAST_RESULT]}'}"
        return ServiceState(True, is_running, f"{text}; its log: {self._logs / f'{name}.log'}")

    def _schtasks(self, *words: str) -> ToolResult:
        done = run_tool(("schtasks", *words))
        if done.code:
            raise ServiceError(f"schtasks {words[0]} failed: {done.reason}")
        return done
