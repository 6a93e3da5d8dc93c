"""The scheduled task of a service, as XML for Windows' Task Scheduler. Pure.

A task at logon instead of a Windows service: a service has to talk to the service manager in its own protocol, which
takes pywin32 or a wrapper; it runs without the user's profile, and to install it takes an administrator.
"""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from server.commands.service.definition import ServiceDefinition, ServiceError

# A task is not started again because its program ended with a failure, so the trigger repeats, and does nothing while
# the program runs. Without the other settings a task ends after three days and whenever the laptop is unplugged.
TEMPLATE = """\
<?xml version="1.0" encoding="UTF-16"?>
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
      <UserId>{user}</UserId>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <UserId>{user}</UserId>
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
      <Arguments>{arguments}</Arguments>
      <WorkingDirectory>{folder}</WorkingDirectory>
    </Exec>
  </Actions>
</Task>
"""


def task_text(service: ServiceDefinition, user: str, log: str) -> str:
    """The whole document. user: DOMAIN\\name; log: the file for what the server writes, made anew at each start.

    Raises ServiceError for an argument that a command line of cmd.exe cannot hold.
    """
    arguments = hidden_command(service.command, log)
    return TEMPLATE.format(user=escape(user), arguments=escape(arguments), folder=escape(str(service.folder)))


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
