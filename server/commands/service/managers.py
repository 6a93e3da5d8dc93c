"""Services, and the managers that run them: systemd's user manager, on Windows tasks that start at a log-on."""

import csv
import getpass
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from engine.errors import UnusableInput
from engine.processes import child_environment
from server.settings import Settings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
MARGIN_S = 10.0  # over what the server itself takes to end
TIMEOUT_S = 120.0  # starting a unit waits for the program to be executed, no longer
# What works in a user's own manager without a namespace of its own: those would hide the NPU's device nodes and fail in
# containers. Core dumps would hold prompts. Netlink is how the C library finds addresses.
HARDENING = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
UMask=0077
LimitCORE=0
"""
SYSTEMCTL = ("systemctl", "--user")
PROPERTIES = ("LoadState", "ActiveState", "SubState", "MainPID", "UnitFileState", "Result")
SCHTASKS = ("schtasks",)
LAST_RESULT = 6  # column of `schtasks /Query /V /FO CSV`, whose names and texts are in the user's language
RUNNING = "267009"  # SCHED_S_TASK_RUNNING


@dataclass(frozen=True, slots=True)
class ServiceDefinition:
    """command: the program with its absolute path and arguments; folder: what relative paths in them start from.
    stop_s: how long it may take to end after it was told to."""

    name: str
    command: tuple[str, ...]
    folder: Path
    stop_s: float


@dataclass(frozen=True, slots=True)
class ServiceState:
    is_installed: bool
    is_running: bool
    text: str


def check_name(name: str) -> str:
    """The name, which becomes part of file names and command lines. Raises UnusableInput."""
    if not NAME.fullmatch(name):
        raise UnusableInput(f"'{name}' is no name for a service: letters, digits, - and _ only, at most 64")
    return name


def stop_seconds(settings: Settings) -> float:
    """How long a server of these settings may take to end: it drains, then its worker writes `kv_file`."""
    return settings.drain_s + settings.engine.save_s + MARGIN_S


def run_tool(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a tool that is known to be there; output that is no text is replaced."""
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            env=child_environment(),
            capture_output=True,
            errors="replace",
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, -1, "", f"{words[0]} did not answer within {TIMEOUT_S:g} s")


def output_of(tool: Sequence[str], *words: str) -> str:
    """What a tool writes. Raises UnusableInput with the last line that it complained with."""
    done = run_tool((*tool, *words))
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = lines[-1].strip() if lines else f"it ended with status {done.returncode}"
        raise UnusableInput(f"{' '.join(tool)} {words[0]} failed: {reason}")
    return done.stdout


def unit_text(service: ServiceDefinition) -> str:
    """The whole file. Raises UnusableInput for a path or an argument that a unit cannot hold."""
    return f"""\
[Unit]
Description=hexserve, an OpenAI-compatible inference server
After=network.target

[Service]
Type=exec
WorkingDirectory={_path(str(service.folder))}
# HEXSERVE_API_KEYS=..., HEXSERVE_PORT=... and the like, one per line; the file may be absent.
EnvironmentFile=-%h/.config/hexserve/env
ExecStart={exec_line(service.command)}
# Only the server hears SIGTERM: its worker must live on until the running requests have finished.
KillMode=mixed
TimeoutStopSec={service.stop_s:.0f}
Restart=on-failure
RestartSec=2
# Exit status 2: a setting or the bundle is wrong, and trying again would not help.
RestartPreventExitStatus=2
# Stopped while it still starts: 128 + SIGTERM.
SuccessExitStatus=143
{HARDENING}
[Install]
WantedBy=default.target
"""


def exec_line(words: Sequence[str]) -> str:
    return " ".join(map(_word, words))


def _word(word: str) -> str:
    """In double quotes, where backslash, quote, dollar and percent are still special."""
    _check(word)
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$").replace("%", "%%")
    return text if text and all(letter.isalnum() or letter in "-_./=,:@+" for letter in text) else f'"{text}"'


def _path(path: str) -> str:
    """A path stands there as it is, up to the end of the line; only specifiers are special."""
    _check(path)
    if path != path.strip() or path.endswith("\\"):
        raise UnusableInput(f"{path!r} cannot stand in a unit file: white space at an end, or a backslash there")
    return path.replace("%", "%%")


def _check(text: str) -> None:
    if not text.isprintable():
        raise UnusableInput(f"{text!r} cannot stand in a unit file: it has control characters")


class SystemdUser:
    """Raises UnusableInput when this machine or this session has no such manager."""

    def __init__(self) -> None:
        if shutil.which("systemctl") is None:
            raise UnusableInput("this machine has no systemd: have its own service manager run 'hexserve serve'")
        self._folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"

    def install(self, service: ServiceDefinition) -> Iterator[str]:
        text = unit_text(service)
        output_of(SYSTEMCTL, "daemon-reload")  # fails before anything is written where there is no manager
        unit = _unit(service.name)
        file = self._folder / unit
        is_new = not file.exists()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UnusableInput(f"{file} cannot be written: {error.strerror or error}") from error
        output_of(SYSTEMCTL, "daemon-reload")
        output_of(SYSTEMCTL, "enable", unit)
        output_of(SYSTEMCTL, "restart", unit)
        yield f"{'wrote' if is_new else 'replaced'} {file} and started it; its log: journalctl --user -u {service.name}"
        if not _lingers():
            yield f"it ends when you log out; to run it always: sudo loginctl enable-linger {getpass.getuser()}"

    def remove(self, name: str) -> Iterator[str]:
        file = self._folder / _unit(name)
        if not file.exists():
            raise UnusableInput(f"there is no service {name}: {file} does not exist")
        output_of(SYSTEMCTL, "disable", "--now", _unit(name))
        file.unlink(missing_ok=True)
        output_of(SYSTEMCTL, "daemon-reload")
        yield f"stopped {name} and removed {file}"

    def state(self, name: str) -> ServiceState:
        shown = output_of(SYSTEMCTL, "show", _unit(name), f"--property={','.join(PROPERTIES)}")
        known = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        if known.get("LoadState") == "not-found":
            return ServiceState(False, False, f"there is no service {name}")
        active, sub = known.get("ActiveState", "unknown"), known.get("SubState", "unknown")
        text = f"{name}: {active} ({sub}), {known.get('UnitFileState', '')}"
        if active == "active":
            return ServiceState(True, True, f"{text}, process {known.get('MainPID', '?')}")
        return ServiceState(True, False, f"{text}, {known.get('Result', '')}; its log: journalctl --user -u {name}")


def _unit(name: str) -> str:
    return f"{name}.service"


def _lingers() -> bool:
    """Whether this user's manager outlives the session; True where nobody can say."""
    if shutil.which("loginctl") is None:
        return True
    return run_tool(("loginctl", "show-user", getpass.getuser(), "--property=Linger")).stdout.strip() != "Linger=no"


# A task is not started again because its program ended with a failure, so the trigger repeats, and does nothing while
# the program runs. Without the other settings a task ends after three days and whenever the laptop is unplugged.
TEMPLATE = Path(__file__).with_name("task.xml")


def task_text(service: ServiceDefinition, user: str, log: str) -> str:
    """The whole document. user: DOMAIN\\name; log: the file for what the server writes, made anew at each start.

    Raises UnusableInput for an argument that a command line of cmd.exe cannot hold.
    """
    arguments = hidden_command(service.command, log)
    template, folder = TEMPLATE.read_text("utf-8"), escape(str(service.folder))
    return template.format(user=escape(user), arguments=escape(arguments), folder=folder)


def hidden_command(words: Sequence[str], log: str) -> str:
    """For conhost.exe: no window, the output in a file. cmd /s takes off the outermost quotes and nothing else."""
    inner = " ".join(map(quoted, words))
    return f'--headless cmd.exe /d /s /c "{inner} > {quoted(log)} 2>&1"'


def quoted(word: str) -> str:
    """A word that cmd.exe and the C runtime take as it is. Raises UnusableInput for what neither can be told."""
    if '"' in word or "%" in word or not word.isprintable():
        text = "cannot be an option of a scheduled task: no quotes, percent signs, control characters"
        raise UnusableInput(f"{word!r} {text}")
    ending = len(word) - len(word.rstrip("\\"))  # backslashes before a quote count twice
    return f'"{word}{word[len(word) - ending :]}"'


class ScheduledTasks:
    """Raises UnusableInput when this machine has no Task Scheduler."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        if shutil.which("schtasks") is None:
            raise UnusableInput("this machine has no Task Scheduler (schtasks)")
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
            raise UnusableInput(f"{self._logs} cannot be written: {error.strerror or error}") from error
        self._end(service.name)  # /Run does nothing beside the server of before, which has its old options
        output_of(SCHTASKS, "/Run", "/TN", service.name)
        yield f"created the task {service.name} and started it; its log: {log}"
        yield "it runs while you are logged on, and is started again within a minute when it ends"

    def remove(self, name: str) -> Iterator[str]:
        """End the task, which does not drain, and forget it."""
        if not self.state(name).is_installed:
            raise UnusableInput(f"there is no task {name}")
        self._end(name)
        output_of(SCHTASKS, "/Delete", "/TN", name, "/F")
        yield f"ended and removed the task {name}"

    def _end(self, name: str) -> None:
        run_tool((*SCHTASKS, "/End", "/TN", name))  # fails when it does not run

    def state(self, name: str) -> ServiceState:
        shown = run_tool((*SCHTASKS, "/Query", "/TN", name, "/V", "/FO", "CSV", "/NH"))
        rows = [row for row in csv.reader(shown.stdout.splitlines()) if len(row) > LAST_RESULT]
        if shown.returncode or not rows:
            return ServiceState(False, False, f"there is no task {name}")
        is_running = any(row[LAST_RESULT] == RUNNING for row in rows)
        text = f"{name}: {'running' if is_running else f'not running, its last result was {rows[0][LAST_RESULT]}'}"
        return ServiceState(True, is_running, f"{text}; its log: {self._logs / f'{name}.log'}")
