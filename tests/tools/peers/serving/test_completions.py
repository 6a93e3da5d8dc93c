"""Completions over an engine that has no server."""

import json
import queue
import threading
from http.server import ThreadingHTTPServer

import httpx

from tools.peers.serving.completions import Handler, Parts


class Letters:
    """Token n is the nth letter; it writes the prompt's last one again and again, two at a time."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(each + ord("a")) for each in ids)

    def ask(self, ids: list[int], most: int, ignores_end: bool) -> Parts:
        parts: Parts = queue.Queue()
        for _ in range(most // 2):
            parts.put(ids[-1:] * 2)
        parts.put(None)
        return parts


def test_completions_of_text_and_ids_whole_and_streamed() -> None:
    class Served(Handler):
        engine = Letters()

    with ThreadingHTTPServer(("127.0.0.1", 0), Served) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1/completions"
        with httpx.Client(trust_env=False) as client:
            whole = client.post(url, json={"prompt": "abc", "max_tokens": 4}).json()
            streamed = client.post(url, json={"prompt": [0, 1], "max_tokens": 4, "stream": True}).text
            refused = client.get(url.replace("v1", "v2"))
        server.shutdown()
    assert whole["choices"][0]["text"] == "cccc"
    *parts, usage, end = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert [json.loads(part)["choices"][0]["text"] for part in parts] == ["bb", "bb"]
    assert json.loads(usage)["usage"] == {"prompt_tokens": 2, "completion_tokens": 4}
    assert end == "[DONE]" and refused.status_code == 404
