"""One run of `hexserve chat`: a server found or started, and the terminal on it."""

import asyncio
import contextlib

import httpx
from rich.console import Console

from server.commands.chat.conversation import Conversation
from server.commands.chat.terminal import Terminal
from server.commands.exit_codes import FAILED, refuse
from server.commands.http_client.address import Unreachable, UnusableAddress
from server.commands.http_client.client import NothingAnswers, ServerClient
from server.commands.own_server import ServerFailed, running_server

TIMEOUT = httpx.Timeout(600.0, connect=10.0)
START_ONE = "Start a server with 'hexserve serve demo', or chat with a bundle: 'hexserve chat --bundle demo'"


def run_chat(conversation: Conversation, url: str, bundle: str, model: str, api_key: str) -> int:
    """Talk until the input ends; the exit code. With `bundle`, to a server of our own that is started on it."""
    notes = Console(stderr=True)
    try:
        with contextlib.ExitStack() as stack:
            if bundle:
                notes.print(f"Starting a server on {bundle} ...", markup=False, style="dim")
                url = stack.enter_context(running_server(bundle))
            runner = stack.enter_context(asyncio.Runner())
            client = ServerClient(url, api_key, model, TIMEOUT)
            stack.callback(lambda: runner.run(client.close()))
            runner.run(client.find_model())
            return Terminal(client, runner, conversation, Console(), notes).talk()
    except UnusableAddress as error:
        refuse(error)
    except NothingAnswers as error:
        refuse(f"{error}. {START_ONE}", FAILED)
    except (Unreachable, ServerFailed) as error:
        refuse(error, FAILED)
