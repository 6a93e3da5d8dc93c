"""The systemd user unit of a service. Pure."""

from collections.abc import Sequence

from server.commands.service.definition import ServiceDefinition, ServiceError

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
