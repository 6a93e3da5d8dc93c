"""`hexserve service install|remove|status`."""

from typing import Annotated

import typer

service_app = typer.Typer(help="Have the system start the server: a systemd user unit, on Windows a scheduled task.")
Name = Annotated[str, typer.Option("--name", help="Name of the service, for more than one on a machine.")]


@service_app.command(
    "install",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="[--name NAME] [SOURCE] [OPTIONS OF serve]",
)
def install(context: typer.Context, name: Name = "hexserve") -> None:
    """Install and start a service with these options of `hexserve serve`, in place of one of the same name."""
    from server.commands.service.session import install_service

    install_service(name, tuple(context.args))


@service_app.command("remove")
def remove(name: Name = "hexserve") -> None:
    """Stop a service and remove it."""
    from server.commands.service.session import remove_service

    remove_service(name)


@service_app.command("status")
def status(name: Name = "hexserve") -> None:
    """Say whether a service runs; status 0 when it does, 1 when it does not."""
    from server.commands.service.session import tell_status

    tell_status(name)
