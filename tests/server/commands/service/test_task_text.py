"""The scheduled task, and its command line as cmd.exe and the C runtime read it."""

from dataclasses import replace
from pathlib import PurePath, PureWindowsPath
from typing import cast
from xml.etree import ElementTree

import pytest

from engine.errors import UnusableInput
from server.commands.service.managers import ServiceDefinition, hidden_command, quoted, task_text

COMMAND = (
    r"C:\Program Files\hexserve\python.exe",
    "-P",
    "-m",
    "server",
    "serve",
    "C:\\bundles\\a & b\\",
    "--port",
    "8001",
)
FOLDER = cast("PurePath", PureWindowsPath(r"C:\Users\anna & ben"))
SERVICE = ServiceDefinition("hexserve", COMMAND, FOLDER, 40.0)  # type: ignore[arg-type]
LOG = r"C:\Users\anna\AppData\Local\hexserve\hexserve.log"
ARGUMENTS = (
    r'--headless cmd.exe /d /s /c ""C:\Program Files\hexserve\python.exe" "-P" "-m" "server" "serve" '
    r'"C:\bundles\a & b\\" "--port" "8001" > "C:\Users\anna\AppData\Local\hexserve\hexserve.log" 2>&1"'
)
TEXT = r"""<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>hexserve, an OpenAI-compatible inference server</Description>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger>
      <Repetition>
        <Interval>PT1M</Interval>
        <StopAtDurationEnd>false</StopAtDurationEnd>
      </Repetition>
      <Enabled>true</Enabled>
      <UserId>LAPTOP\anna</UserId>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <UserId>LAPTOP\anna</UserId>
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <StartWhenAvailable>true</StartWhenAvailable>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Enabled>true</Enabled>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>conhost.exe</Command>
      <Arguments>--headless cmd.exe /d /s /c ""C:\Program Files\hexserve\python.exe" "-P" "-m" "server" "serve" "C:\bundles\a &amp; b\\" "--port" "8001" &gt; "C:\Users\anna\AppData\Local\hexserve\hexserve.log" 2&gt;&amp;1"</Arguments>
      <WorkingDirectory>C:\Users\anna &amp; ben</WorkingDirectory>
    </Exec>
  </Actions>
</Task>
"""  # noqa: E501


def test_the_whole_text() -> None:
    assert task_text(SERVICE, r"LAPTOP\anna", LOG) == TEXT


def test_an_xml_reader_finds_the_command_line() -> None:
    root = ElementTree.fromstring(TEXT.encode("utf-16"))
    space = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}
    assert root.findtext("t:Actions/t:Exec/t:Arguments", namespaces=space) == ARGUMENTS
    assert root.findtext("t:Actions/t:Exec/t:WorkingDirectory", namespaces=space) == str(FOLDER)


def test_the_command_line() -> None:
    assert hidden_command(COMMAND, LOG) == ARGUMENTS
    assert quoted("C:\\") == '"C:\\\\"' and quoted("") == '""' and quoted("a^b & c!") == '"a^b & c!"'


@pytest.mark.parametrize("word", ['say "x"', "%PATH%", "a\nb", "\x00"])
def test_what_no_command_line_of_cmd_can_hold_is_refused(word: str) -> None:
    with pytest.raises(UnusableInput, match="cannot be an option of a scheduled task"):
        task_text(replace(SERVICE, command=(*COMMAND, word)), r"LAPTOP\anna", LOG)
