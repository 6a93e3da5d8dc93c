"""Chunks -> Anthropic's events: the first one does not wait for the model, and pings keep the connection alive."""

from sse_starlette import ServerSentEvent

from server.http.sse import Framing, frame

PING = ServerSentEvent(event="ping", data='{"type":"ping"}', sep="\n")
PINGED_EVENTS = Framing("text/event-stream", frame, keep_alive=PING, opens_early=True)
