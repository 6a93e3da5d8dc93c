"""deploy/nginx.conf before three servers: beginnings stay together, streams are not held back, a loss is survived."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from server.commands.own_server import free_port
from tests.live import LiveServer, serving
from tests.long.deploy.nginx_program import nginx_program

CONFIGURATION = Path(__file__).parents[3] / "deploy" / "nginx.conf"


@dataclass
class Balanced:
    """nginx at `url`, and its servers."""

    url: str
    servers: list[LiveServer]

    def ask(self, system: str, turn: int) -> httpx.Response:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"What is {turn} + 3?"}]
        body = {"model": "demo", "messages": messages, "max_tokens": 4}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=60)


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balanced]:
    folder = tmp_path_factory.mktemp("nginx")
    port = free_port()
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving("--bundle", "demo")) for _ in range(3)]
        text = CONFIGURATION.read_text().replace("listen 127.0.0.1:8000", f"listen 127.0.0.1:{port}")
        for number, server in enumerate(servers, 1):
            text = text.replace(f"127.0.0.1:800{number}", server.url.removeprefix("http://"))
        (folder / "nginx.conf").write_text(text)
        command = [nginx_program(), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            transport = httpx.HTTPTransport(retries=8)
            with httpx.Client(transport=transport) as client:
                assert client.get(f"http://127.0.0.1:{port}/health").status_code == 200
            yield Balanced(f"http://127.0.0.1:{port}", servers)
        finally:
            process.terminate()
            process.communicate()


def test_websockets_reach_a_machine(balanced: Balanced) -> None:
    """A handshake that the server refuses, because it does not converse: a plain request would be told to upgrade."""
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    headers = upgrade | {"Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg=="}
    answer = httpx.get(f"{balanced.url}/v1/realtime?intent=conversation", headers=headers, timeout=60)
    assert answer.status_code == 400 and "it does not converse by voice" in answer.text


def test_a_page_that_rebinds_its_name_is_refused(balanced: Balanced) -> None:
    """As by a server without nginx before it."""
    for host, status in (("evil.example:8000", 403), ("localhost:8000", 200)):
        assert httpx.get(f"{balanced.url}/health", headers={"Host": host}).status_code == status


def test_what_begins_alike_goes_to_one_machine_and_others_elsewhere(balanced: Balanced) -> None:
    machines = {}
    for group in range(24):  # one machine would be left out once in 5,000 times
        system = " ".join(f"word{group}-{index}" for index in range(200))
        answers = [balanced.ask(system, turn) for turn in range(3)]
        assert {answer.status_code for answer in answers} == {200}
        (machines[group],) = {answer.headers["x-machine"] for answer in answers}
        cached = [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
        assert cached[0] < 64 < min(cached[1:])
    assert len(set(machines.values())) == 3


def test_a_stream_is_passed_on_as_it_comes(balanced: Balanced) -> None:
    body = {"model": "demo", "prompt": "Once", "max_tokens": 400, "n": 32, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{balanced.url}/v1/completions", json=body, timeout=60) as answer:
        pieces = answer.iter_raw()
        first = next(pieces)
        running = [server.metric("vllm:num_requests_running") for server in balanced.servers]
        assert first.startswith(b"data: ") and sum(running) > 0  # 12,800 tokens are not written that soon
        assert b"".join(pieces).endswith(b"data: [DONE]\n\n")


def test_a_machine_that_is_gone_is_passed_over(balanced: Balanced) -> None:
    before = {number: balanced.ask(f"You are number {number}. " * 90, 1).headers["x-machine"] for number in range(9)}
    [gone] = [server for server in balanced.servers if server.url.endswith(before[0])]
    os.killpg(gone.process.pid, 9)
    gone.process.wait()
    lost = before[0]
    for number, machine in before.items():
        answer = balanced.ask(f"You are number {number}. " * 90, 2)
        assert answer.status_code == 200
        last = answer.headers["x-machine"].split(", ")[-1]
        assert last != lost and machine in (lost, last)  # the others keep what they have
