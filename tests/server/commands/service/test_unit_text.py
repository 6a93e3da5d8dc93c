"""The unit file, letter for letter, and what systemd itself says of it."""

import configparser
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import UnusableInput
from server.commands.service.managers import HARDENING, ServiceDefinition, exec_line, unit_text

ROOT = Path(__file__).parents[4]
COMMAND = ("/opt/hexserve/bin/python", "-P", "-m", "server", "serve", "/models/my model", "--port", "8001")
SERVICE = ServiceDefinition("hexserve", COMMAND, Path("/home/anna/50% work"), 40.0)
TEXT = """\
[Unit]
Description=hexserve, an OpenAI-compatible inference server
After=network.target

[Service]
Type=exec
WorkingDirectory=/home/anna/50%% work
# HEXSERVE_API_KEYS=..., HEXSERVE_PORT=... and the like, one per line; the file may be absent.
EnvironmentFile=-%h/.config/hexserve/env
ExecStart=/opt/hexserve/bin/python -P -m server serve "/models/my model" --port 8001
# Only the server hears SIGTERM: its worker must live on until the running requests have finished.
KillMode=mixed
TimeoutStopSec=40
Restart=on-failure
RestartSec=2
# Exit status 2: a setting or the bundle is wrong, and trying again would not help.
RestartPreventExitStatus=2
# Stopped while it still starts: 128 + SIGTERM.
SuccessExitStatus=143
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
UMask=0077
LimitCORE=0

[Install]
WantedBy=default.target
"""


def test_the_whole_text() -> None:
    assert unit_text(SERVICE) == TEXT


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("--port", "--port"),
        ("", '""'),
        ("a b", '"a b"'),
        ('say "x"', '"say \\"x\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("$HOME", '"$$HOME"'),
        ("100%", '"100%%"'),
        ("a;b", '"a;b"'),
        ("'", '"\'"'),
        ("modèle", "modèle"),
    ],
)
def test_words(word: str, written: str) -> None:
    assert exec_line([word]) == written


@pytest.mark.parametrize("word", ["a\nExecStartPre=/bin/evil", "\x00", "\x1b[2J"])
def test_no_argument_can_add_a_line(word: str) -> None:
    with pytest.raises(UnusableInput, match="control characters"):
        unit_text(replace(SERVICE, command=(*COMMAND, word)))
    with pytest.raises(UnusableInput, match="control characters"):
        unit_text(replace(SERVICE, folder=Path(f"/x{word}")))
    with pytest.raises(UnusableInput, match="white space at an end"):
        unit_text(replace(SERVICE, folder=Path("/x ")))


def test_the_unit_that_is_installed_by_hand_has_the_same_lines() -> None:
    def sections(text: str) -> dict[str, dict[str, str]]:
        parser = configparser.ConfigParser(interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(text)
        return {name: dict(parser[name]) for name in parser.sections()}

    written, by_hand = sections(TEXT), sections((ROOT / "deploy" / "hexserve.service").read_text(encoding="utf-8"))
    for name in ("ExecStart", "WorkingDirectory"):
        written["Service"].pop(name)
        by_hand["Service"].pop(name, None)
    assert written == by_hand


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    folder = tmp_path / 'a "b" $c 50%'
    folder.mkdir()
    odd = ServiceDefinition(
        "hexserve", (sys.executable, "-P", *COMMAND[2:], 'a "b"', "$c", "%h", "\\", "'"), folder, 40.0
    )
    file = tmp_path / "hexserve.service"
    file.write_text(unit_text(odd), encoding="utf-8")
    command = ["systemd-analyze", "--user", "--man=no", "verify", str(file)]
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    file.write_text(unit_text(odd).replace("KillMode=mixed", "KillMode=odd"), encoding="utf-8")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert "Failed to parse kill mode" in done.stderr
    assert HARDENING in unit_text(odd)
