"""`hexserve compile --layout fused` and `hexserve serve`: the API as ever, the tokens of the row graph."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from engine.compile.arguments import Layout, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from tests.command_line import compile_arguments
from tests.live import LiveServer, serving

QUESTIONS = (
    "What is the capital of France?",
    "Add 12 and 30.",
    "Hello! Who are you?",
    "Count from 1 to 9.",
    "What is the capital of Spain?",
    "Write a list of three fruits as JSON.",
)
ROUNDS = 5
COMMANDS = {
    "row": "--layout pool --rows 1,8,32 --context 512",
    "one slot": "--layout fused --rows 32,64 --context 512",
    "three slots": "--layout fused --rows 32 --context 512 --decode-slots 3",
}


def ask(server: LiveServer, question: str, **options: object) -> dict[str, object]:
    body = {"model": "demo", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 32}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body | options, timeout=120)
    answer.raise_for_status()
    found: dict[str, object] = answer.json()
    return found


def text(answer: dict[str, object]) -> str:
    return str(answer["choices"][0]["message"]["content"])  # type: ignore[index]


def folder_of(folder: Path, name: str) -> Path:
    return folder / name.replace(" ", "-")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The embedded model in each layout, compiled by the command's own options."""
    folder = tmp_path_factory.mktemp("fused")
    for name, words in COMMANDS.items():
        options = f"demo -o {folder_of(folder, name)} --quant fp32 --name demo --parity-tokens 64 {words}"
        compile_bundle(compile_arguments(options.split()), SilentProgress())
    return {name: folder_of(folder, name) for name in COMMANDS}


@pytest.fixture(scope="module")
def row_answers(folders: dict[str, Path]) -> list[str]:
    with serving(str(folders["row"])) as server:
        return [text(ask(server, question)) for question in QUESTIONS]


@pytest.fixture(scope="module", params=["one slot", "three slots"])
def server(folders: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    with serving(str(folders[request.param])) as live:
        yield live


def test_the_options_of_the_command_arrive() -> None:
    made = compile_arguments(["s", "-o", "o", *COMMANDS["three slots"].split(), "--kv-update", "host"])
    assert (made.layout, made.rows, made.decode_slots, made.kv_update) == (Layout.FUSED, (32,), 3, "host")
    assert made.quant is Quant.INT8


def test_answers_of_clients_at_once_are_those_of_the_row_graph(server: LiveServer, row_answers: list[str]) -> None:
    with ThreadPoolExecutor(len(QUESTIONS)) as clients:
        assert [text(found) for found in clients.map(lambda question: ask(server, question), QUESTIONS)] == row_answers
    variants = httpx.get(f"{server.url}/v1/models").json()["data"][0]["meta"]["variants"]
    assert variants[0] == "model.0.s1" and variants[-1].startswith("model.0.pd.s")


def test_what_rides_on_the_engine_still_does(server: LiveServer, row_answers: list[str]) -> None:
    """Several answers, structured output, log-probabilities of a prompt, a request that is too long."""
    two = ask(server, QUESTIONS[0], n=2)
    assert [choice["message"]["content"] for choice in two["choices"]] == [row_answers[0]] * 2  # type: ignore[index]
    chosen = ask(server, QUESTIONS[4], structured_outputs={"choice": ["Madrid", "Paris"]})
    assert text(chosen) in {"Madrid", "Paris"}
    body = {"model": "demo", "prompt": "The capital of France is Paris.", "max_tokens": 1, "logprobs": 1, "echo": True}
    scored = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).json()
    lists = scored["choices"][0]["logprobs"]
    assert len(lists["tokens"]) == len(lists["token_logprobs"]) > 5
    assert all(number is not None and number <= 0 for number in lists["token_logprobs"][1:])
    long = {"model": "demo", "prompt": "word " * 600, "max_tokens": 1}
    refused = httpx.post(f"{server.url}/v1/completions", json=long, timeout=120)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_stream_survives_the_worker_that_served_it(server: LiveServer) -> None:
    """The next worker prefills what was delivered, in a cache of its own, and goes on. On a busy machine an answer may
    be whole before its worker is killed: then it is asked for again."""
    long = {"min_tokens": 400, "max_tokens": 400}
    expected = text(ask(server, QUESTIONS[2], **long))
    for _ in range(ROUNDS):
        assert streamed_and_killed(server, **long) == expected
        if any("1 unfinished requests go on with the next one" in line for line in server.lines):
            return
    pytest.fail(f"every answer of {ROUNDS} was whole before its worker was killed")


def streamed_and_killed(server: LiveServer, min_tokens: int, max_tokens: int) -> str:
    """The text of a stream whose worker is killed with its first piece."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120, max_retries=0)
    stream = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": QUESTIONS[2]}],
        temperature=0,
        max_tokens=max_tokens,
        extra_body={"min_tokens": min_tokens},
        stream=True,
    )
    worker, pieces = server.worker_pid(), []
    for chunk in stream:
        pieces.append(chunk.choices[0].delta.content or "" if chunk.choices else "")
        if sum(map(bool, pieces)) == 1 and pieces[-1]:
            os.kill(worker, signal.SIGKILL)
    return "".join(pieces)
