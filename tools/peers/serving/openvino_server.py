"""OpenVINO GenAI's continuous batching behind HTTP: `python openvino_server.py FILE PORT THREADS SLOTS`.

Runs in the environment of openvino-genai, which has no server of its own. It answers what `hexserve bench` asks:
`GET /v1/models` and greedy `POST /v1/completions` of token ids or text, streamed or not.
"""

import json
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

CACHE_GB = 2
Parts = queue.Queue[list[int] | None]  # of an answer, and None behind the last


class OpenVinoPipeline:
    """The pipeline and the thread that steps it. Requests come and go in that thread alone."""

    def __init__(self, path: str, threads: int, slots: int) -> None:
        scheduling = genai.SchedulerConfig()
        scheduling.cache_size, scheduling.max_num_seqs = CACHE_GB, slots
        scheduling.dynamic_split_fuse, scheduling.enable_prefix_caching = True, True
        self._pipeline = genai.ContinuousBatchingPipeline(path, scheduling, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self.tokenizer = self._pipeline.get_tokenizer()
        self._arrivals: queue.Queue[tuple[list[int], Any, Parts]] = queue.Queue()
        self._numbers = count()
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, ids: list[int], most: int, ignores_end: bool) -> Parts:
        """Queue a prompt; the parts of its answer come as they are made."""
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = most, ignores_end, False
        answer: Parts = queue.Queue()
        self._arrivals.put((ids, config, answer))
        return answer

    def _run(self) -> None:
        running: dict[int, tuple[Any, Parts]] = {}
        while True:
            self._take(running, wait=not running)
            if self._pipeline.has_non_finished_requests():
                self._pipeline.step()
            for number, (handle, answer) in list(running.items()):
                if handle.can_read():
                    for result in handle.read().values():
                        answer.put(list(result.generated_ids))
                elif handle.get_status() != genai.GenerationStatus.RUNNING:
                    answer.put(None)
                    del running[number]

    def _take(self, running: dict[int, tuple[Any, Parts]], wait: bool) -> None:
        while wait or not self._arrivals.empty():
            ids, config, answer = self._arrivals.get()
            number = next(self._numbers)
            handle = self._pipeline.add_request(number, ov.Tensor(np.array([ids], np.int64)), config)
            running[number] = handle, answer
            wait = False


class Handler(BaseHTTPRequestHandler):
    """One connection. pipeline: of the server."""

    protocol_version = "HTTP/1.1"
    pipeline: OpenVinoPipeline

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        """The list of models."""
        if self.path.startswith("/v1/models"):
            self._whole({"data": [{"id": "openvino"}]})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        """A completion."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, tokenizer = asked["prompt"], self.pipeline.tokenizer
        ids = tokenizer.encode(prompt).input_ids.data[0].tolist() if isinstance(prompt, str) else prompt
        parts = iter(self.pipeline.ask(ids, asked["max_tokens"], asked.get("ignore_eos", False)).get, None)
        if not asked.get("stream"):
            written = [token for part in parts for token in part]
            self._whole({"choices": [{"text": tokenizer.decode(written), "finish_reason": "length"}]})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        written = []
        for part in filter(None, parts):
            written += part
            self._event({"choices": [{"text": tokenizer.decode(part) or " "}]})
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


def main() -> int:
    """Serve until killed."""
    path, port, threads, slots = sys.argv[1], *map(int, sys.argv[2:5])
    Handler.pipeline = OpenVinoPipeline(path, threads, slots)
    ThreadingHTTPServer.request_queue_size = 128  # of clients who come at once, the sixth that waits is sent away
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
