"""Services as scheduled tasks of Windows, started when their user logs on."""

import csv
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from server.commands.service.definition import (
    ServiceDefinition,
    ServiceError,
    ServiceState,
    output_of,
    run_tool,
)

# A task is not started again because its program ended with a failure, so the trigger repeats, and does nothing while
# the program runs. Without the other settings a task ends after three days and whenever the laptop is unplugged.
TEMPLATE = Path(__file__).with_name("task.xml")


def task_text(service: ServiceDefinition, user: str, log: str) -> str:
    """The whole document. user: DOMAIN\\name; log: the file for what the server writes, made anew at each start.

    Raises ServiceError for an argument that a command line of cmd.exe cannot hold.
    """
    arguments = hidden_command(service.command, log)
    template, folder = TEMPLATE.read_text("utf-8"), escape(str(service.folder))
    return template.format(user=escape(user), arguments=escape(arguments), folder=folder)


def hidden_command(words: Sequence[str], log: str) -> str:
    """What conhost.exe is given to run the program without a window, its output in a file.

    cmd /s takes off the outermost quotes and nothing else.
    """
    inner = " ".join(map(quoted, words))
    return f'--headless cmd.exe /d /s /c "{inner} > {quoted(log)} 2>&1"'


def quoted(word: str) -> str:
    """A word that cmd.exe and the C runtime take as it is. Raises ServiceError for what neither can be told."""
    if '"' in word or "%" in word or not word.isprintable():
        raise ServiceError(
            f"{word!r} cannot be an option of a scheduled task: no quotes, percent signs, control characters"
        )
    ending = len(word) - len(word.rstrip("\\"))  # backslashes before a quote count twice
    return f'"{word}{word[len(word) - ending :]}"'


SCHTASKS = ("schtasks",)
LAST_RESULT = 6  # column of `schtasks /Query /V /FO CSV`, whose names and texts are in the user's language
RUNNING = "267009"  # SCHED_S_TASK_RUNNING


class ScheduledTasks:
    """Raises ServiceError when this machine has no Task Scheduler."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        if shutil.which("schtasks") is None:
            raise ServiceError("this machine has no Task Scheduler (schtasks)")
        user, domain = environment.get("USERNAME", ""), environment.get("USERDOMAIN", "")
        self._user = f"{domain}\\{user}" if domain else user
        self._logs = Path(environment.get("LOCALAPPDATA") or Path.home()) / "hexserve"

    def install(self, service: ServiceDefinition) -> Iterator[str]:
        log = self._logs / f"{service.name}.log"
        text = task_text(service, self._user, str(log))
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "task.xml"
                file.write_text(text, encoding="utf-16")
                output_of(SCHTASKS, "/Create", "/TN", service.name, "/XML", str(file), "/F")
        except OSError as error:
            raise ServiceError(f"{self._logs} cannot be written: {error.strerror or error}") from error
        output_of(SCHTASKS, "/Run", "/TN", service.name)
        yield f"created the task {service.name} and started it; its log: {log}"
        yield "it runs while you are logged on, and is started again within a minute when it ends"

    def remove(self, name: str) -> Iterator[str]:
        """End the task, which does not drain, and forget it."""
        if not self.state(name).is_installed:
            raise ServiceError(f"there is no task {name}")
        run_tool((*SCHTASKS, "/End", "/TN", name))  # fails when it does not run
        output_of(SCHTASKS, "/Delete", "/TN", name, "/F")
        yield f"ended and removed the task {name}"

    def state(self, name: str) -> ServiceState:
        shown = run_tool((*SCHTASKS, "/Query", "/TN", name, "/V", "/FO", "CSV", "/NH"))
        rows = [row for row in csv.reader(shown.stdout.splitlines()) if len(row) > LAST_RESULT]
        if shown.returncode or not rows:
            return ServiceState(False, False, f"there is no task {name}")
        is_running = any(row[LAST_RESULT] == RUNNING for row in rows)
        text = f"{name}: {'running' if is_running else f'not running, its last result was {rows[0][LAST_RESULT]}'}"
        return ServiceState(True, is_running, f"{text}; its log: {self._logs / f'{name}.log'}")
