"""GET /v1/realtime: a WebSocket over which sound is written down while it comes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast

from fastapi import APIRouter, Request, Response, WebSocket
from fastapi import WebSocketDisconnect as Disconnected
from starlette.datastructures import QueryParams

from server.api.openai.realtime_session import RealtimeSession
from server.generation.launch import Server, named_model, server_of
from server.generation.window_writer import speech_spec
from server.http.connections import REALTIME_PATH
from server.http.errors import echo, refuse
from server.models.models import ServedModel

MOST_SESSIONS = 16  # of one key, or address
TRANSCRIPTION, PROTOCOL = "transcription", "realtime"
BETA = ("openai-beta", "realtime=v1")
router = APIRouter()


class OpenSessions:
    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def entered(self, caller: str) -> Iterator[None]:
        """In this block one more is open; Refusal 429 when that is too many."""
        if self._open[caller] >= MOST_SESSIONS:
            message = f"You have {MOST_SESSIONS} realtime sessions open; more are not allowed."
            raise refuse(message, code="rate_limit_exceeded", status=429)
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            self._open += Counter()  # forgets who has none


@router.get(REALTIME_PATH, include_in_schema=False)
async def realtime_without_upgrade(_: Request) -> Response:
    raise refuse("This path takes WebSocket connections only.", status=426, headers=(("Upgrade", "websocket"),))


@router.websocket(REALTIME_PATH)
async def realtime(socket: WebSocket) -> None:
    """A session; what cannot be had is refused with a status before it begins."""
    server = server_of(socket)
    _check_query(socket.query_params)
    server.in_flight.check_open()
    model = _model(server, socket.query_params.get("model"))
    caller = socket.scope["state"]["caller"].name

    async def send(text: str) -> None:
        try:
            await socket.send_text(text)
        except RuntimeError:  # closed already, such as for a message that is too large
            raise Disconnected from None

    with cast(OpenSessions, socket.app.state.sessions).entered(caller):
        is_old = socket.headers.get(BETA[0]) == BETA[1]
        session = RealtimeSession(server, model, send, is_old)
        await socket.accept(PROTOCOL if PROTOCOL in socket.scope["subprotocols"] else None)
        try:
            if not await session.run(socket.receive):
                with suppress(RuntimeError):
                    await socket.close()
        except (Disconnected, TimeoutError):  # who takes no events takes no end either
            return


def _check_query(query: QueryParams) -> None:
    intent = query.get("intent")
    if intent != TRANSCRIPTION:
        what = "it is missing" if intent is None else echo(intent)
        does = f"This server writes speech down (intent={TRANSCRIPTION}); it does not converse by voice."
        raise refuse(f"Invalid 'intent': {what}. {does}", "intent", "unsupported_value")
    for name in query:
        if name not in ("intent", "model"):
            raise refuse(f"Unknown parameter: {echo(name)}.", name[:64], "unknown_parameter")


def _model(server: Server, name: str | None) -> ServedModel:
    """The model of that name; without one the first that writes speech down, as far as that is known."""
    for model in server.models.models if name is None else ():
        if model.manifest is not None and model.manifest.speech is not None:
            return model
    return named_model(server, name, speech_spec)
