"""Services of systemd's user manager."""

import getpass
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from server.commands.service.definition import (
    ServiceDefinition,
    ServiceError,
    ServiceState,
    output_of,
    run_tool,
)

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


def unit_text(service: ServiceDefinition) -> str:
    """The whole file. Raises ServiceError for a path or an argument that a unit cannot hold."""
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
    """A command line that systemd splits into exactly these words."""
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
        raise ServiceError(f"{path!r} cannot stand in a unit file: white space at an end, or a backslash there")
    return path.replace("%", "%%")


def _check(text: str) -> None:
    if not text.isprintable():
        raise ServiceError(f"{text!r} cannot stand in a unit file: it has control characters")


SYSTEMCTL = ("systemctl", "--user")
PROPERTIES = ("LoadState", "ActiveState", "SubState", "MainPID", "UnitFileState", "Result")


class SystemdUser:
    """Raises ServiceError when this machine or this session has no such manager."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        if shutil.which("systemctl") is None:
            raise ServiceError("this machine has no systemd: have its own service manager run 'hexserve serve'")
        base = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self._folder = base / "systemd" / "user"

    def install(self, service: ServiceDefinition) -> Iterator[str]:
        text = unit_text(service)
        output_of(SYSTEMCTL, "daemon-reload")  # fails before anything is written where there is no manager
        file = self._file(service.name)
        is_new = not file.exists()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ServiceError(f"{file} cannot be written: {error.strerror or error}") from error
        output_of(SYSTEMCTL, "daemon-reload")
        output_of(SYSTEMCTL, "enable", _unit(service.name))
        output_of(SYSTEMCTL, "restart", _unit(service.name))
        yield f"{'wrote' if is_new else 'replaced'} {file} and started it; its log: journalctl --user -u {service.name}"
        if not _lingers():
            yield f"it ends when you log out; to run it always: sudo loginctl enable-linger {getpass.getuser()}"

    def remove(self, name: str) -> Iterator[str]:
        file = self._file(name)
        if not file.exists():
            raise ServiceError(f"there is no service {name}: {file} does not exist")
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

    def _file(self, name: str) -> Path:
        return self._folder / _unit(name)


def _unit(name: str) -> str:
    return f"{name}.service"


def _lingers() -> bool:
    """Whether this user's manager outlives the session; True where nobody can say."""
    if shutil.which("loginctl") is None:
        return True
    return run_tool(("loginctl", "show-user", getpass.getuser(), "--property=Linger")).stdout.strip() != "Linger=no"
