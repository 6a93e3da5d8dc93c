"""What `hexserve bench` asks of a server, over an engine that has none: `GET /v1/models`, `POST /v1/completions`."""

import json
import queue
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

Parts = queue.Queue[list[int] | None]  # of an answer, and None behind the last


class Completer(Protocol):
    """An engine that answers several prompts at once, greedily."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt."""

    def decode(self, ids: list[int]) -> str:
        """Their text."""

    def ask(self, ids: list[int], most: int, ignores_end: bool) -> Parts:
        """Queue a prompt; the parts of its answer come as they are made."""


class Handler(BaseHTTPRequestHandler):
    """One connection. engine: of the server."""

    protocol_version = "HTTP/1.1"
    engine: Completer

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        """The list of models."""
        if self.path.startswith("/v1/models"):
            self._whole({"data": [{"id": "peer"}]})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        """A completion of token ids or text, streamed or not."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = asked["prompt"]
        ids = self.engine.encode(prompt) if isinstance(prompt, str) else prompt
        parts = iter(self.engine.ask(ids, asked["max_tokens"], asked.get("ignore_eos", False)).get, None)
        if not asked.get("stream"):
            written = [token for part in parts for token in part]
            self._whole({"choices": [{"text": self.engine.decode(written), "finish_reason": "length"}]})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        written = []
        for part in filter(None, parts):
            written += part
            self._event({"choices": [{"text": self.engine.decode(part) or " "}]})
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(written)}
        self._event({"choices": [{"text": "", "finish_reason": "length"}], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _whole(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _event(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


def serve(engine: Completer, port: int) -> None:
    """Until killed."""
    Handler.engine = engine
    ThreadingHTTPServer.request_queue_size = 128  # of clients who come at once, the sixth that waits is sent away
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
