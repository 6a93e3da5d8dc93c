"""Scheduled tasks with a schtasks that writes down how it is called."""

import sys
from pathlib import Path

import pytest

from engine.errors import UnusableInput
from server.commands.service.command import manager_of
from server.commands.service.managers import ScheduledTasks, ServiceDefinition, task_text
from tests.server.commands.service.fakes import FakeTools

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")
# As a German Windows writes them: only the number in the seventh column counts.
ROW = r'"LAPTOP","\hexserve","N/A","{status}","Nur interaktiv","22.11.2026 10:00:00","{result}","LAPTOP\anna"' + "\n"
RUNNING, ENDED = ROW.format(status="Wird ausgeführt", result="267009"), ROW.format(status="Bereit", result="2")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTools:
    tools = FakeTools(tmp_path, "schtasks")
    monkeypatch.setenv("PATH", tools.path)
    return tools


@pytest.fixture
def tasks(tools: FakeTools, tmp_path: Path) -> ScheduledTasks:
    return ScheduledTasks({"USERNAME": "anna", "USERDOMAIN": "LAPTOP", "LOCALAPPDATA": str(tmp_path / "local")})


def test_install_creates_and_runs(tasks: ScheduledTasks, tools: FakeTools, tmp_path: Path) -> None:
    service = ServiceDefinition("hexserve", ("python.exe", "-P", "-m", "server", "serve"), tmp_path, 40.0)
    lines = list(tasks.install(service))
    log = tmp_path / "local" / "hexserve" / "hexserve.log"
    create, end, run = tools.records()
    assert create["xml"] == task_text(service, r"LAPTOP\anna", str(log)) and log.parent.is_dir()
    words = create["words"]
    assert isinstance(words, list) and words[:4] == ["/Create", "/TN", "hexserve", "/XML"] and words[5:] == ["/F"]
    assert end["words"] == ["/End", "/TN", "hexserve"]  # a server with other options may run
    assert run["words"] == ["/Run", "/TN", "hexserve"]
    assert str(log) in lines[0] and not Path(words[4]).exists()


def test_status_needs_no_word_of_any_language(tasks: ScheduledTasks, tools: FakeTools) -> None:
    tools.answer({"/Query": (0, RUNNING, "")})
    assert tasks.state("hexserve").is_running and tasks.state("hexserve").is_installed
    tools.answer({"/Query": (0, ENDED, "")})
    state = tasks.state("hexserve")
    assert state.is_installed and not state.is_running and "last result was 2" in state.text
    tools.answer({"/Query": (1, "", "FEHLER: Das System kann die angegebene Datei nicht finden.\n")})
    assert not tasks.state("hexserve").is_installed


def test_remove(tasks: ScheduledTasks, tools: FakeTools) -> None:
    tools.answer({"/Query": (0, RUNNING, "")})
    assert list(tasks.remove("hexserve")) == ["ended and removed the task hexserve"]
    assert [call.split()[1] for call in tools.calls()] == ["/Query", "/End", "/Delete"]
    tools.answer({"/Query": (1, "", "no")})
    with pytest.raises(UnusableInput, match="there is no task hexserve"):
        list(tasks.remove("hexserve"))


def test_what_schtasks_refuses_is_told(tasks: ScheduledTasks, tools: FakeTools, tmp_path: Path) -> None:
    tools.answer({"/Create": (1, "", "ERROR: Access is denied.\n")})
    with pytest.raises(UnusableInput, match=r"^schtasks /Create failed: ERROR: Access is denied\.$"):
        list(tasks.install(ServiceDefinition("hexserve", ("python.exe",), tmp_path, 40.0)))


def test_which_manager_a_system_has(tools: FakeTools) -> None:
    assert isinstance(manager_of("win32"), ScheduledTasks)
    (tools.folder / "schtasks").unlink()
    with pytest.raises(UnusableInput, match="no Task Scheduler"):
        manager_of("win32")
