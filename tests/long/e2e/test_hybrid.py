"""A Qwen3.5 behind the whole server: answers, prefixes, and a worker that dies, all by transformers' tokens."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from tests.hybrid import Hybrid, text_of
from tests.live import LiveServer, serving

PROMPTS = [text_of(length, length) for length in (5, 40, 90)]


@pytest.fixture(scope="module")
def server(hybrid: Hybrid, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    cache: Path = tmp_path_factory.mktemp("cache")
    with serving("--bundle", str(hybrid.bundle), "--threads", "1", cache=cache) as live:
        yield live


def answer_of(server: LiveServer, prompt: tuple[int, ...], count: int) -> str:
    """What the server answers greedily."""
    body = {"model": "checkpoint", "prompt": list(prompt), "max_tokens": count, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == count
    return str(answer.json()["choices"][0]["text"])


def expected(hybrid: Hybrid, prompt: tuple[int, ...], count: int) -> str:
    """What transformers answers."""
    return str(Tokenizer.from_file(str(hybrid.source / "tokenizer.json")).decode(hybrid.greedy(prompt, count)))


def test_many_clients_get_what_transformers_says(server: LiveServer, hybrid: Hybrid) -> None:
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        found = list(clients.map(lambda prompt: answer_of(server, prompt, 24), PROMPTS))
    assert found == [expected(hybrid, prompt, 24) for prompt in PROMPTS]


def test_the_next_turn_finds_the_last_one(server: LiveServer, hybrid: Hybrid) -> None:
    before = server.metric("vllm:prefix_cache_hits_total")
    prompt = (*PROMPTS[1], *hybrid.greedy(PROMPTS[1], 24), 7, 8, 9)
    assert answer_of(server, prompt, 8) == expected(hybrid, prompt, 8)
    assert server.metric("vllm:prefix_cache_hits_total") - before >= 48


def test_a_worker_that_dies_is_gone_on_without(server: LiveServer, hybrid: Hybrid) -> None:
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(answer_of, server, PROMPTS[2], 120)
        with httpx.stream(
            "POST",
            f"{server.url}/v1/completions",
            json={"model": "checkpoint", "prompt": PROMPTS[0], "max_tokens": 200, "stream": True, "ignore_eos": True},
            timeout=120,
        ) as stream:
            next(stream.iter_lines())
            os.kill(server.worker_pid(), signal.SIGKILL)
        assert answer.result() == expected(hybrid, PROMPTS[2], 120)


def test_its_start_told_the_memory_of_states(server: LiveServer) -> None:
    lines = [line for line in server.lines if "memory: weights" in line]
    assert lines and "states of 256 sequences" in lines[0] and "snapshots of states" in lines[0]
