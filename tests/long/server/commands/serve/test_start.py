"""The whole server as a user starts it: real worker, embedded model, signals to the process group."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from engine.demo.location import demo_folder

ROOT = Path(__file__).parents[5]
PATIENCE_S = 60
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals to a process group are POSIX here"),
    pytest.mark.skipif(not (demo_folder() / "model.safetensors").is_file(), reason="needs the embedded model"),
]


class Served:
    """A running `hexserve serve`; everything it wrote so far is in `log`."""

    def __init__(self, cache: Path) -> None:
        command = [sys.executable, "-m", "server", "serve", "--port", "0", "--cache-dir", str(cache)]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.log = ""
        self.base_url = self._wait_for(r"serving demo on (\S+)")
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def _wait_for(self, pattern: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(f"the server ended: {self.log}")

    def end(self, number: signal.Signals, to_group: bool) -> int:
        """Signal the server, or everything in its session as a terminal does; the exit code."""
        if to_group:
            for process in (*self.children, psutil.Process(self.process.pid)):
                process.send_signal(number)
        else:
            self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=PATIENCE_S)
        self.log += rest
        return self.process.returncode


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def serve(cache: Path) -> Iterator[Callable[[], Served]]:
    started: list[Served] = []

    def serve() -> Served:
        started.append(Served(cache))
        return started[-1]

    yield serve
    for served in started:
        if served.process.poll() is None:
            served.process.kill()
            served.process.communicate()


def test_a_chat_and_a_drain(serve: Callable[[], Served]) -> None:
    served = serve()
    client = openai.OpenAI(base_url=f"{served.base_url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    stream = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Tell me a story."}],
        max_tokens=300,
        stream=True,
        extra_body={"ignore_eos": True},
        stream_options={"include_usage": True},
    )
    next(stream)
    served.process.send_signal(signal.SIGTERM)
    chunks = list(stream)  # the drain lets it finish
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 300
    assert served.end(signal.SIGTERM, to_group=False) == 0
    assert "Traceback" not in served.log
    assert not any(child.is_running() for child in served.children)


def test_ctrl_c_ends_server_and_worker(serve: Callable[[], Served]) -> None:
    served = serve()
    body = {"model": "demo", "stream": True, "ignore_eos": True, "messages": [{"role": "user", "content": "Hello"}]}
    with httpx.stream("POST", f"{served.base_url}/v1/chat/completions", json=body, timeout=PATIENCE_S) as answer:
        lines = answer.iter_lines()
        next(lines)
        code = served.end(signal.SIGINT, to_group=True)
        assert any('"The server is shutting down."' in line for line in lines)
    assert code == 0
    assert "Traceback" not in served.log
    assert not any(child.is_running() for child in served.children)
