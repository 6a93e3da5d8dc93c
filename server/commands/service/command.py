"""`hexserve service install|remove|status`."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from engine.processes import module_command
from server.commands.exit_codes import FAILED
from server.commands.serve.command import serve, settings_of
from server.commands.service import managers
from server.settings import ENVIRONMENT_PREFIX, Settings

service_app = typer.Typer(help="Have the system start the server: a systemd user unit, on Windows a scheduled task.")
Name = Annotated[str, typer.Option("--name", help="Name of the service, for more than one on a machine.")]


def manager_of(platform: str = sys.platform) -> managers.ScheduledTasks | managers.SystemdUser:
    """The service manager of this system. Raises UnusableInput."""
    return managers.ScheduledTasks() if platform == "win32" else managers.SystemdUser()


def served_settings(words: tuple[str, ...]) -> Settings:
    """What the service would serve with; ends the command with the sentence of `hexserve serve` when it would refuse.
    The variables of this shell are not the service's."""
    app = typer.Typer(add_completion=False)
    app.command("serve")(serve)
    parsed = typer.main.get_command(app).make_context("serve", list(words)).params
    given: dict[str, Any] = {key: list(value) if isinstance(value, tuple) else value for key, value in parsed.items()}
    return settings_of(given.pop("sources"), given.pop("config"), given, {})


def foreign_variables(environment: Mapping[str, str] = os.environ) -> str:
    """A sentence on settings of this shell, which the service will not have; '' when there are none."""
    names = ", ".join(sorted(name for name in environment if name.startswith(ENVIRONMENT_PREFIX)))
    where = "docs/how-to/install.md says where to put them"
    return f"not part of the service: {names} of this shell ({where})" if names else ""


@service_app.command(
    "install",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="[--name NAME] [SOURCE] [OPTIONS OF serve]",
)
def install(context: typer.Context, name: Name = "hexserve") -> None:
    """Install and start a service with these options of `hexserve serve`, in place of one of the same name."""
    words = tuple(context.args)
    settings = served_settings(words)
    command, stop_s = tuple(module_command("server", "serve", *words)), managers.stop_seconds(settings)
    service = managers.ServiceDefinition(managers.check_name(name), command, Path.cwd(), stop_s)
    for line in manager_of().install(service):
        print(line)
    if note := foreign_variables():
        print(note)


@service_app.command("remove")
def remove(name: Name = "hexserve") -> None:
    """Stop a service and remove it."""
    for line in manager_of().remove(managers.check_name(name)):
        print(line)


@service_app.command("status")
def status(name: Name = "hexserve") -> None:
    """Say whether a service runs; status 0 when it does, 1 when it does not."""
    state = manager_of().state(managers.check_name(name))
    print(state.text)
    raise typer.Exit(0 if state.is_running else FAILED)
