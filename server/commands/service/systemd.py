"""Services of systemd's user manager."""

import getpass
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from server.commands.service.definition import ServiceDefinition, ServiceError, ServiceState
from server.commands.service.run_tool import ToolResult, has_tool, run_tool
from server.commands.service.unit_text import unit_text

PROPERTIES = ("LoadState", "ActiveState", "SubState", "MainPID", "UnitFileState", "Result")


class SystemdUser:
    """Raises ServiceError when this machine or this session has no such manager."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        if not has_tool("systemctl"):
            raise ServiceError("this machine has no systemd: have its own service manager run 'hexserve serve'")
        base = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self._folder = base / "systemd" / "user"

    def install(self, service: ServiceDefinition) -> Iterator[str]:
        """Write the unit, enable and start it; lines for the user."""
        text = unit_text(service)
        self._systemctl("daemon-reload")  # fails before anything is written where there is no manager
        file = self._file(service.name)
        is_new = not file.exists()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ServiceError(f"{file} cannot be written: {error.strerror or error}") from error
        self._systemctl("daemon-reload")
        self._systemctl("enable", _unit(service.name))
        self._systemctl("restart", _unit(service.name))
        yield f"{'wrote' if is_new else 'replaced'} {file} and started it; its log: journalctl --user -u {service.name}"
        if not _lingers():
            yield f"it ends when you log out; to run it always: sudo loginctl enable-linger {getpass.getuser()}"

    def remove(self, name: str) -> Iterator[str]:
        """Stop the service and forget it."""
        file = self._file(name)
        if not file.exists():
            raise ServiceError(f"there is no service {name}: {file} does not exist")
        self._systemctl("disable", "--now", _unit(name))
        file.unlink(missing_ok=True)
        self._systemctl("daemon-reload")
        yield f"stopped {name} and removed {file}"

    def state(self, name: str) -> ServiceState:
        """What the manager knows of it."""
        shown = self._systemctl("show", _unit(name), f"--property={','.join(PROPERTIES)}")
        known = dict(line.split("=", 1) for line in shown.output.splitlines() if "=" in line)
        if known.get("LoadState") == "not-found":
            return ServiceState(False, False, f"there is no service {name}")
        active, sub = known.get("ActiveState", "unknown"), known.get("SubState", "unknown")
        text = f"{name}: {active} ({sub}), {known.get('UnitFileState', '')}"
        if active == "active":
            return ServiceState(True, True, f"{text}, process {known.get('MainPID', '?')}")
        return ServiceState(True, False, f"{text}, {known.get('Result', '')}; its log: journalctl --user -u {name}")

    def _file(self, name: str) -> Path:
        return self._folder / _unit(name)

    def _systemctl(self, *words: str) -> ToolResult:
        done = run_tool(("systemctl", "--user", *words))
        if done.code:
            raise ServiceError(f"systemctl --user {words[0]} failed: {done.reason}")
        return done


def _unit(name: str) -> str:
    return f"{name}.service"


def _lingers() -> bool:
    """Whether this user's manager outlives the session; True where nobody can say."""
    if not has_tool("loginctl"):
        return True
    return run_tool(("loginctl", "show-user", getpass.getuser(), "--property=Linger")).output.strip() != "Linger=no"
