"""The whole path with a real client library: many streams at once, and a worker that dies under them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest
from openai import AsyncOpenAI

from engine.demo.location import demo_folder
from engine.text.tokenizer import Tokenizer
from tests.live import LiveServer, serving

QUESTIONS = [
    "What is the capital of France?",
    "What is the capital of Japan?",
    "What is 17 + 25?",
    "What is 90 - 34?",
    "Hello!",
    "Who are you?",
    "Tell me a short story.",
    "Reverse this list: red, blue, green, pink",
    "Copy this list: apple, pear, plum, fig, kiwi, lime",
    "What is the capital of Peru?",
    "What is the capital of Kenya?",
    "What is 123 + 456?",
    "Give me a JSON object with name Ann and age 31.",
    "How do I bake bread?",
    "What is the capital of Norway?",
    "Tell me a story about a fox.",
]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving("--bundle", "demo", "--deterministic", "--kv-slots", "1536") as live:
        yield live


def end_bias() -> dict[str, int]:
    """A bias that forbids the end tokens, so that every stream runs to its max_tokens."""
    tokenizer = Tokenizer.load(demo_folder(), _text_spec())
    return {str(tokenizer.encode(token, allow_special=True)[0]): -100 for token in ("<|im_end|>", "<|endoftext|>")}


def _text_spec() -> object:
    from engine.bundle.manifest import TextSpec

    return TextSpec("tokenizer.json", None, ())


async def stream(client: AsyncOpenAI, question: str, tokens: int, on_chunk: Callable[[], None]) -> str:
    chunks = await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=tokens,
        logit_bias=end_bias(),
        stream=True,
    )
    text, finish = "", None
    async for chunk in chunks:
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        finish = choice.finish_reason or finish
        on_chunk()
    assert finish == "length"
    return text


@pytest.fixture
async def client(server: LiveServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as made:
        yield made


async def test_sixteen_streams_are_what_each_is_alone(server: LiveServer, client: AsyncOpenAI) -> None:
    alone = [await stream(client, question, 48, lambda: None) for question in QUESTIONS]
    rows, steps = (server.metric(f"hexserve:{name}_total") for name in ("decode_rows", "steps"))
    worker = server.worker_pid()
    os.kill(worker, signal.SIGSTOP)  # until all have asked, so that a slow machine cannot make them come one by one
    streams = [asyncio.create_task(stream(client, question, 48, lambda: None)) for question in QUESTIONS]
    try:
        while await asyncio.to_thread(server.metric, "hexserve:requests_unfinished") < len(QUESTIONS):
            assert not any(task.done() for task in streams)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert await asyncio.gather(*streams) == alone
    rows, steps = server.metric("hexserve:decode_rows_total") - rows, server.metric("hexserve:steps_total") - steps
    print(f"rows that decode, per step, first and last steps included: {rows / steps:.2f}")
    assert rows / steps >= 12


async def test_killed_worker_loses_no_stream(server: LiveServer, client: AsyncOpenAI) -> None:
    questions = [f"{question} ({index})" for index, question in enumerate(QUESTIONS * 2)]
    expected = [await stream(client, question, 32, lambda: None) for question in questions]
    chunks = 0

    def count() -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 32 * 8:
            os.kill(server.worker_pid(), signal.SIGKILL)

    restarts = server.metric("hexserve:worker_restarts_total")
    together = await asyncio.gather(*(stream(client, question, 32, count) for question in questions))
    assert list(together) == expected
    assert server.metric("hexserve:worker_restarts_total") == restarts + 1


@pytest.fixture
def impatient() -> Iterator[LiveServer]:
    """A server that notices a hung worker soon."""
    with serving("--bundle", "demo", "--deterministic", "--kv-slots", "1536", "--step-timeout-s", "2") as live:
        yield live


async def stop_under_streams(server: LiveServer, questions: list[str], moments: Sequence[int]) -> None:
    """Stop the worker at each moment, in chunks of a fresh round of streams; every text is what it is undisturbed."""
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        expected = await asyncio.gather(*(stream(client, question, 32, lambda: None) for question in questions))
        for moment in moments:
            chunks = 0

            def count(moment: int = moment) -> None:
                nonlocal chunks
                chunks += 1
                if chunks == moment:
                    os.kill(server.worker_pid(), signal.SIGSTOP)

            restarts = server.metric("hexserve:worker_restarts_total")
            together = await asyncio.gather(*(stream(client, question, 32, count) for question in questions))
            assert together == expected, f"stopped at chunk {moment}"
            while await asyncio.to_thread(server.metric, "hexserve:worker_restarts_total") == restarts:
                pass  # a stop in the last tokens is noticed after them


async def test_a_stopped_worker_loses_no_stream(impatient: LiveServer) -> None:
    questions = [f"{question} ({index})" for index, question in enumerate(QUESTIONS * 2)]
    await stop_under_streams(impatient, questions, (1, 250, 500, 32 * 24))


async def test_a_client_that_leaves_frees_its_rows(server: LiveServer, client: AsyncOpenAI) -> None:
    chunks = await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Tell me a story."}],
        max_tokens=1500,
        logit_bias=end_bias(),
        stream=True,
    )
    async for _ in chunks:
        break
    await chunks.close()
    # The next answer needs steps of its own; after it nobody may still be running.
    await stream(client, "Hello!", 40, lambda: None)
    assert server.metric("vllm:num_requests_running") == 0
    assert server.metric("hexserve:kv_slots_used") == 0
