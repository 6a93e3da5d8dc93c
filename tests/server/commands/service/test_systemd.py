"""`hexserve service` with a systemctl that writes down how it is called."""

import contextlib
import getpass
import os
import sys
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

from server.commands.cli import app
from tests.server.commands.service.fakes import FakeTools

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there it is the Task Scheduler")


@pytest.fixture
def tools(tmp_path: Path) -> FakeTools:
    return FakeTools(tmp_path, "systemctl", "loginctl")


def service(tools: FakeTools, *words: str, **variables: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `hexserve service WORDS`."""
    home = tools.folder.parent
    environment = {"PATH": tools.path, "HOME": str(home), **variables}
    with contextlib.chdir(home), mock.patch.dict(os.environ, environment, clear=True):
        done = CliRunner().invoke(app, ["service", *words])
    return done.exit_code, done.stdout, done.stderr


def unit(tools: FakeTools, name: str = "hexserve") -> Path:
    return tools.folder.parent / ".config" / "systemd" / "user" / f"{name}.service"


def test_install_writes_enables_and_starts(tools: FakeTools) -> None:
    code, output, errors = service(tools, "install", "demo", "--port", "8001", "--drain-s", "5", "--no-page")
    assert (code, errors) == (0, "")
    text = unit(tools).read_text()
    assert f"ExecStart={sys.executable} -P -m server serve demo --port 8001 --drain-s 5 --no-page\n" in text
    assert f"WorkingDirectory={tools.folder.parent}\n" in text and "TimeoutStopSec=15\n" in text
    assert output.splitlines()[0].startswith(f"wrote {unit(tools)} and started it")
    assert tools.calls() == [
        "systemctl --user daemon-reload",
        "systemctl --user daemon-reload",
        "systemctl --user enable hexserve.service",
        "systemctl --user restart hexserve.service",
        f"loginctl show-user {getpass.getuser()} --property=Linger",
    ]


def test_a_second_one_replaces_the_first_and_others_have_names(tools: FakeTools) -> None:
    service(tools, "install", "--port", "8001")
    assert service(tools, "install", "--port", "8002")[1].startswith("replaced ")
    assert "--port 8002" in unit(tools).read_text()
    service(tools, "install", "--name", "big", "--port", "8003")
    assert "--port 8003" in unit(tools, "big").read_text() and "--port 8002" in unit(tools).read_text()


def test_it_may_take_as_long_to_end_as_its_settings_say(tools: FakeTools) -> None:
    service(tools, "install", "--kv-file", "cache.kv", "--kv-offload-mb", "2048")
    assert "TimeoutStopSec=86\n" in unit(tools).read_text()


def test_who_is_not_lingering_is_told_so(tools: FakeTools) -> None:
    tools.answer({"loginctl": (0, "Linger=no\n", "")})
    assert f"sudo loginctl enable-linger {getpass.getuser()}" in service(tools, "install")[1]
    tools.answer({"loginctl": (0, "Linger=yes\n", "")})
    assert "enable-linger" not in service(tools, "install")[1]


def test_variables_of_the_shell_are_not_the_services(tools: FakeTools) -> None:
    code, output, _ = service(tools, "install", HEXSERVE_API_KEYS="me:secret", HEXSERVE_PORT="no port")
    assert code == 0 and "not part of the service: HEXSERVE_API_KEYS, HEXSERVE_PORT of this shell" in output
    assert "secret" not in output + unit(tools).read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--prt", "1"), "No such option"),
        (("--port", "99999"), "error: --port must be less than or equal to 65535"),
        (("--name", "../evil"), "error: '../evil' is no name for a service"),
        (("a\nExecStartPre=/bin/evil",), "control characters"),
    ],
)
def test_what_serve_would_refuse_is_not_installed(tools: FakeTools, words: tuple[str, ...], sentence: str) -> None:
    code, _, errors = service(tools, "install", *words)
    assert code == 2 and sentence in errors
    assert not unit(tools).parent.exists() and tools.calls() == []


def test_without_systemd_and_without_its_user_manager(tools: FakeTools, tmp_path: Path) -> None:
    tools.answer({"systemctl": (1, "", "Failed to connect to bus: No medium found\n")})
    sentence = "error: systemctl --user daemon-reload failed: Failed to connect to bus: No medium found\n"
    assert service(tools, "install") == (2, "", sentence)
    assert not unit(tools).parent.exists()
    (tools.folder / "systemctl").unlink()
    for verb in ("install", "remove", "status"):
        code, output, errors = service(tools, verb)
        assert (code, output) == (2, "") and errors.startswith("error: this machine has no systemd: have its own")


def test_status(tools: FakeTools) -> None:
    running = (
        "LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=42\nUnitFileState=enabled\nResult=success\n"
    )
    tools.answer({"show hexserve.service": (0, running, "")})
    assert service(tools, "status") == (0, "hexserve: active (running), enabled, process 42\n", "")
    failed = (
        "LoadState=loaded\nActiveState=failed\nSubState=failed\nMainPID=0\nUnitFileState=enabled\nResult=exit-code\n"
    )
    tools.answer({"show hexserve.service": (0, failed, "")})
    text = "hexserve: failed (failed), enabled, exit-code; its log: journalctl --user -u hexserve\n"
    assert service(tools, "status") == (1, text, "")
    tools.answer({"show": (0, "LoadState=not-found\nActiveState=inactive\n", "")})
    assert service(tools, "status", "--name", "big") == (1, "there is no service big\n", "")


def test_remove(tools: FakeTools) -> None:
    assert service(tools, "remove")[0] == 2
    service(tools, "install")
    tools.calls()
    assert service(tools, "remove") == (0, f"stopped hexserve and removed {unit(tools)}\n", "")
    assert tools.calls() == [
        "systemctl --user disable --now hexserve.service",
        "systemctl --user daemon-reload",
    ]
    assert not unit(tools).exists()
