"""`hexserve chat`, and `hexserve run NAME`: a model fetched, compiled and served for one chat in the terminal."""

from typing import Annotated

import typer

from server.commands.exit_codes import refuse

DEFAULT_URL = "http://127.0.0.1:8000"

System = Annotated[str, typer.Option(help="System message.")]
Temperature = Annotated[float | None, typer.Option(min=0, max=2, help="The server's own if left out.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")]


def chat(
    source: Annotated[str, typer.Argument(metavar="[NAME]", help="Start a server on a model, as `run` does.")] = "",
    url: Annotated[str, typer.Option(help=f"A running server; {DEFAULT_URL} if neither is given.")] = "",
    system: System = "",
    temperature: Temperature = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1, help="The server's own if left out.")] = None,
    max_tokens: MaxTokens = None,
    model: Annotated[str, typer.Option(help="Model name; the first one listed if left out.")] = "",
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Bearer key.")] = "",
) -> None:
    """Chat in the terminal with a running server, or with a model of any name that `hexserve serve` takes."""
    from engine.bundle.specs import Capability
    from engine.sources.packaged import catalogue
    from server.commands.chat_terminal import Conversation, is_text, run_chat

    if url and source:
        refuse("--url and NAME exclude each other")
    if not is_text(system + model):
        refuse("--system and --model must be text, without bytes that are no characters")
    known = catalogue().get(source)
    if known is not None and Capability.COMPLETION not in known.abilities:
        refuse(f"{source} is for {' and '.join(known.abilities)}, not for chats: hexserve serve {source}")
    given = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    is_asked = temperature is not None or top_p is not None
    fields: dict[str, float | int] = {} if known is None or is_asked else dict(known.sampling)
    fields |= {name: value for name, value in given.items() if value is not None}
    raise typer.Exit(run_chat(Conversation(system, fields), url or DEFAULT_URL, source, model, api_key))


def run_command(
    source: Annotated[
        str, typer.Argument(metavar="NAME", help="A name of `hexserve models`, ORG/NAME[:QUANT] of the hub, or a path.")
    ],
    system: System = "",
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
) -> None:
    """Fetch a model, compile it if need be, and chat with it; its server ends with the chat."""
    if not source.strip():
        refuse("NAME must not be empty")
    chat(source, system=system, temperature=temperature, max_tokens=max_tokens)
