"""`hexserve chat`: options."""

from typing import Annotated

import typer

from server.commands.exit_codes import refuse

DEFAULT_URL = "http://127.0.0.1:8000"


def chat(
    url: Annotated[str, typer.Option(help=f"A running server; {DEFAULT_URL} if neither is given.")] = "",
    bundle: Annotated[str, typer.Option(help="Start a server on 'demo', 'demo-diffusion' or a folder instead.")] = "",
    system: Annotated[str, typer.Option(help="System message.")] = "",
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="The server's own if left out.")] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1, help="The server's own if left out.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
    model: Annotated[str, typer.Option(help="Model name; the first one listed if left out.")] = "",
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Bearer key.")] = "",
) -> None:
    """Chat in the terminal with a running server, or with a bundle."""
    from server.commands.chat.conversation import Conversation, is_text
    from server.commands.chat.session import run_chat

    if url and bundle:
        refuse("--url and --bundle exclude each other")
    if not is_text(system + model):
        refuse("--system and --model must be text, without bytes that are no characters")
    given = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    conversation = Conversation(system, {name: value for name, value in given.items() if value is not None})
    raise typer.Exit(run_chat(conversation, url or DEFAULT_URL, bundle, model, api_key))
