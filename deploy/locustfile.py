"""Streamed chats under load, for locust: times of first tokens and gaps beside its own table.

    locust -f deploy/locustfile.py --headless -u 16 -r 16 -t 20s --host http://127.0.0.1:8000

Rows of the table, all in milliseconds except the rate:
    CHAT  stream        a whole answer, from the request to its last byte
    CHAT  429 / 503     refused because of load; waits as told, and is no failure
    TTFT  first token   from the request to the first visible text
    GAP   between tokens   between two arrivals of text; its "max" is the longest silence a reader saw
    RATE  tokens/s      tokens of an answer per second, from the request to its last text (not milliseconds)
Everything else that goes wrong is a failure, and locust then exits with 1.

Settings, from the environment: LOAD_MODEL (the first one listed), LOAD_MAX_TOKENS (64), LOAD_TEMPERATURE (0),
LOAD_API_KEY (none), LOAD_THINK_S (0: the next question at once), LOAD_QUESTIONS (a file, one question per line),
LOAD_CHATS (most chats of all users together, then the run ends; 0 = until the time is up).
"""

import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
from locust import HttpUser, constant, events, task
from locust.clients import ResponseContextManager
from locust.env import Environment
from locust.exception import StopUser

QUESTIONS = (
    "What is the capital of France?",
    "What is 17 plus 25?",
    "Hello! Who are you?",
    "Tell me a short story.",
    "What is the capital of Japan?",
    "Reverse this list: red, green, blue, black",
)
REFUSED = {429: "429", 503: "503"}
LONGEST_WAIT_S = 5.0


@dataclass(frozen=True)
class Load:
    """The settings above; `chats` counts what all users have begun, `gone` the users that have ended."""

    model: str
    max_tokens: int
    temperature: float
    api_key: str
    think_s: float
    most_chats: int
    questions: tuple[str, ...]
    chats: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    gone: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))


def read_load() -> Load:
    """From the environment. Raises ValueError or OSError on nonsense, which locust shows."""
    get = os.environ.get
    path = get("LOAD_QUESTIONS")
    lines = Path(path).read_text(encoding="utf-8").splitlines() if path else QUESTIONS
    return Load(
        model=get("LOAD_MODEL", ""),
        max_tokens=int(get("LOAD_MAX_TOKENS", "64")),
        temperature=float(get("LOAD_TEMPERATURE", "0")),
        api_key=get("LOAD_API_KEY", ""),
        think_s=float(get("LOAD_THINK_S", "0")),
        most_chats=int(get("LOAD_CHATS", "0")),
        questions=tuple(line for line in lines if line.strip()),
    )


LOAD = read_load()


@dataclass
class Stream:
    """What one reader saw; times in seconds of time.perf_counter."""

    sent_at: float
    arrivals: list[float] = field(default_factory=list)
    completion_tokens: int = 0
    finish_reason: str = ""
    is_done: bool = False
    error: str = ""

    def take(self, data: str) -> None:
        """One event."""
        if data == "[DONE]":
            self.is_done = True
            return
        chunk = json.loads(data)
        if chunk.get("error"):
            self.error = str(chunk["error"].get("message", chunk["error"]))
            return
        if chunk.get("usage"):
            self.completion_tokens = chunk["usage"]["completion_tokens"]
        for choice in chunk["choices"]:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            if choice["delta"].get("content"):
                self.arrivals.append(time.perf_counter())

    def complaint(self) -> str:
        """Why this is no whole answer; empty when it is one."""
        lacking = {
            "no finish_reason": not self.finish_reason,
            "no usage": not self.completion_tokens,
            "no [DONE]": not self.is_done,
            "no text": not self.arrivals,
        }
        return self.error or ", ".join(what for what, is_missing in lacking.items() if is_missing)


def read_events(lines: Iterator[bytes]) -> Iterator[str]:
    """The data of each event; comments and empty lines are skipped."""
    for line in lines:
        if line.startswith(b"data:"):
            yield line[5:].strip().decode("utf-8")


class ChatUser(HttpUser):
    """Asks one question after the other and reads every answer as it comes."""

    wait_time = constant(LOAD.think_s)

    def on_start(self) -> None:
        """Find the model once per user."""
        if LOAD.api_key:
            self.client.headers["Authorization"] = f"Bearer {LOAD.api_key}"
        self.client.headers["Accept-Encoding"] = "identity"
        self.model = LOAD.model or self.client.get("/v1/models", name="models").json()["data"][0]["id"]

    def on_stop(self) -> None:
        """The last user to run out of chats ends the run; from a greenlet of its own, as it ends the users too."""
        runner = self.environment.runner
        if LOAD.most_chats and next(LOAD.gone) == runner.target_user_count:
            gevent.spawn(runner.quit)

    @task
    def chat(self) -> None:
        """One streamed answer."""
        number = next(LOAD.chats)
        if 0 < LOAD.most_chats < number:
            raise StopUser
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": random.choice(LOAD.questions)}],
            "max_tokens": LOAD.max_tokens,
            "temperature": LOAD.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        stream = Stream(time.perf_counter())
        with self.client.post(
            "/v1/chat/completions", json=body, name="stream", stream=True, catch_response=True
        ) as response:
            response.request_meta["request_type"] = "CHAT"
            if response.status_code in REFUSED:
                self.wait_as_told(response)
                return
            if response.status_code == 200:
                self.read(response, stream)
        if not stream.complaint():
            self.report(stream)

    def read(self, response: ResponseContextManager, stream: Stream) -> None:
        """To the end of the stream; the verdict goes into `response`."""
        try:
            for data in read_events(response.iter_lines(chunk_size=None)):
                stream.take(data)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            stream.error = stream.error or f"{type(error).__name__}: {error}"
        response.request_meta["response_time"] = (time.perf_counter() - stream.sent_at) * 1000
        if complaint := stream.complaint():
            response.failure(complaint)
        else:
            response.success()

    def wait_as_told(self, response: ResponseContextManager) -> None:
        """Count a refusal under its own name and stay away as long as Retry-After says."""
        response.request_meta["name"] = REFUSED[response.status_code]
        response.success()
        try:
            seconds = float(response.headers.get("Retry-After", "1"))
        except ValueError:
            seconds = 1.0
        gevent.sleep(min(max(seconds, 0.0), LONGEST_WAIT_S))

    def report(self, stream: Stream) -> None:
        """Feed locust's table with what the reader saw."""
        first, last = stream.arrivals[0], stream.arrivals[-1]
        self.fire("TTFT", "first token", (first - stream.sent_at) * 1000)
        for earlier, later in itertools.pairwise(stream.arrivals):
            self.fire("GAP", "between tokens", (later - earlier) * 1000)
        self.fire("RATE", "tokens/s", stream.completion_tokens / (last - stream.sent_at))

    def fire(self, kind: str, name: str, value: float) -> None:
        """One value for the row `kind` `name`."""
        self.environment.events.request.fire(
            request_type=kind, name=name, response_time=value, response_length=0, exception=None, context={}
        )


@events.quitting.add_listener
def refuse_an_empty_run(environment: Environment, **_: Any) -> None:
    """A run without a single answer proves nothing and must not exit with 0."""
    if environment.stats.get("stream", "CHAT").num_requests == 0:
        print("no chat was answered")
        environment.process_exit_code = 1
