"""A client of WebSockets over a plain socket, which can also say what no client should."""

import json
import socket
from typing import Any

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, TextMessage

from tests.server.served import Served

PATH = "/v1/realtime?intent=transcription"
UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {'A' * 22}==")
PATIENCE_S = 30


class Client:
    """A handshake with these headers, then frames. head: what the server answered; body: where it denied."""

    def __init__(self, server: Served, *headers: str, path: str = PATH, host: str = "localhost") -> None:
        self.server = server
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", *headers]
        self.socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += (piece := self.socket.recv(65536))
            assert piece, answer
        head, _, rest = answer.partition(b"\r\n\r\n")
        self.head = head.decode().lower()
        self.status = int(head.split()[1])
        self.frames = Connection(ConnectionType.CLIENT)
        if self.status == 101:
            self.frames.receive_data(rest)
        else:
            size = int(self.head.partition("content-length: ")[2].split("\r\n")[0] or 0)
            while len(rest) < size:
                rest += self.socket.recv(65536)
            self.body = rest

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.closed()

    def closed(self) -> "Client":
        self.socket.close()
        return self

    def say(self, **event: Any) -> None:
        self.send(json.dumps(event))

    def send(self, message: str | bytes) -> None:
        kind = TextMessage if isinstance(message, str) else BytesMessage
        self.socket.sendall(self.frames.send(kind(message)))  # type: ignore[operator]

    def event(self) -> dict[str, Any]:
        return dict(json.loads(self._next(TextMessage).data))

    def end(self) -> int | None:
        """The code with which the server closes; None where it only leaves."""
        found = self._next(CloseConnection)
        return found.code if found else None

    def _next(self, kind: type[Event]) -> Any:
        text = ""
        while True:
            for found in self.frames.events():
                if isinstance(found, kind):
                    if isinstance(found, TextMessage) and not found.message_finished:
                        text += found.data
                        continue
                    return TextMessage(text + found.data) if isinstance(found, TextMessage) else found
            try:
                piece = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not piece:
                return None
            self.frames.receive_data(piece)
