"""A server of a block-diffusion model behind the OpenAI API: streams, choices, stops, refusals, and a mixed load."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.request import Denoising, Unmasking
from tests.engine.core.blocks_by_hand import denoise
from tests.engine.core.eager_blocks import EagerBlocks, write_sdar
from tests.live import LiveServer, serving

MASK = 300
MASK_TEXT = "w44"  # how the tokenizer spells it
ENDS = (383, 381)
FOUR = Denoising(4, MASK, 4, confidence_threshold=0.03)
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sdar(tmp_path_factory.mktemp("sdar") / "tiny-sdar", 4, MASK)


@pytest.fixture(scope="module")
def eager(checkpoint: Path) -> EagerBlocks:
    return EagerBlocks.load(checkpoint)


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("bundle") / "tiny-sdar"
    compile_bundle(CompileArguments(checkpoint, folder, quant=Quant.FP32, parity_tokens=8), SilentProgress())
    cache = tmp_path_factory.mktemp("cache")
    with serving(str(folder), "--deterministic", cache=cache) as live:
        yield live


def prompt_of(length: int) -> list[int]:
    return [(index * 37 + length * 11 + 5) % 256 for index in range(length)]


def post(server: LiveServer, path: str, body: dict[str, Any]) -> httpx.Response:
    """Ask with the threshold of FOUR, where tokens are generated and the body has none."""
    usual = {"model": "tiny-sdar"} | ({"confidence_threshold": 0.03} if path.startswith("/v1/") else {})
    return httpx.post(f"{server.url}{path}", json=usual | body, timeout=TIMEOUT_S)


def completion(server: LiveServer, **body: Any) -> dict[str, Any]:
    answer = post(server, "/v1/completions", {"temperature": 0, "max_tokens": 13, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def text_of(server: LiveServer, tokens: list[int]) -> str:
    return str(post(server, "/detokenize", {"tokens": tokens}).json()["prompt"])


def events(server: LiveServer, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = post(server, path, {"stream": True, **body})
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("length", [3, 8, 21])
@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({}, FOUR),
        ({"confidence_threshold": 0.025, "denoising_steps": 3}, replace(FOUR, steps=3, confidence_threshold=0.025)),
        (
            {"unmasking_strategy": "static_confidence", "denoising_steps": 2},
            replace(FOUR, steps=2, unmasking=Unmasking.STATIC_CONFIDENCE),
        ),
        ({"unmasking_strategy": "sequential"}, replace(FOUR, unmasking=Unmasking.SEQUENTIAL)),
        (
            {"unmasking_strategy": "entropy_bound", "entropy_bound": 11},
            replace(FOUR, unmasking=Unmasking.ENTROPY_BOUND, entropy_bound=11.0),
        ),
    ],
)
def test_greedy_answers_are_the_definition(
    server: LiveServer, eager: EagerBlocks, length: int, fields: dict[str, Any], settings: Denoising
) -> None:
    expected = denoise(eager, prompt_of(length), settings, 13, stops=ENDS)
    answer = completion(server, prompt=prompt_of(length), skip_special_tokens=False, **fields)
    assert answer["usage"]["completion_tokens"] == len(expected.tokens)
    assert answer["choices"][0]["text"] == text_of(server, expected.tokens)
    assert answer["choices"][0]["finish_reason"] == expected.finish


def test_the_model_says_how_long_its_blocks_are(server: LiveServer) -> None:
    assert httpx.get(f"{server.url}/v1/models/tiny-sdar").json()["meta"]["block_length"] == 4


def test_a_stream_brings_whole_blocks_in_order(server: LiveServer) -> None:
    whole = completion(server, prompt=prompt_of(6), logprobs=0, ignore_eos=True, max_tokens=15)["choices"][0]
    chunks = events(
        server, "/v1/completions", prompt=prompt_of(6), logprobs=0, ignore_eos=True, temperature=0, max_tokens=15
    )
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    sizes = [len(choice["logprobs"]["tokens"]) for choice in choices if choice["logprobs"]]
    assert [size for size in sizes if size] == [2, 4, 4, 4, 1]
    assert whole["logprobs"]["tokens"] == [
        token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["tokens"]
    ]


def test_log_probabilities_are_those_of_the_pass_that_chose_the_token(server: LiveServer, eager: EagerBlocks) -> None:
    """One after the other, so that the steps are easy to tell; without the mask token, before bias."""
    answer = completion(
        server, prompt=prompt_of(8), max_tokens=6, logprobs=3, unmasking_strategy="sequential", ignore_eos=True
    )
    found = answer["choices"][0]["logprobs"]
    tokens = denoise(eager, prompt_of(8), replace(FOUR, unmasking=Unmasking.SEQUENTIAL), 8).tokens
    for index in range(6):
        start = 8 + index // 4 * 4
        known = [*prompt_of(8), *tokens[:index]]
        logits = eager([*known, *[MASK] * (start + 4 - len(known))], [8 + index])[0]
        logits[MASK] = -np.inf
        logprobs = logits - np.log(np.exp(logits).sum())
        assert found["token_logprobs"][index] == pytest.approx(logprobs[tokens[index]], abs=1e-4)
        assert max(found["top_logprobs"][index].values()) == pytest.approx(logprobs.max(), abs=1e-4)


def test_the_mask_token_never_comes_out(server: LiveServer) -> None:
    """Not even where a bias asks for nothing else."""
    body = {"prompt": prompt_of(9), "temperature": 2, "seed": 5, "max_tokens": 40, "logit_bias": {str(MASK): 100}}
    assert MASK_TEXT not in completion(server, **body)["choices"][0]["text"].split()
    only = {str(token): -100 for token in range(256) if token != 65} | {"65": 100}
    assert completion(server, prompt=[1, 2], logit_bias=only)["choices"][0]["text"] == text_of(server, [65] * 13)


def test_seeds_choices_and_cuts_of_the_distribution(server: LiveServer) -> None:
    body = {"prompt": prompt_of(10), "temperature": 1.2, "n": 3, "seed": 11, "ignore_eos": True}
    first, again = completion(server, **body), completion(server, **body)
    texts = [choice["text"] for choice in first["choices"]]
    assert texts == [choice["text"] for choice in again["choices"]]
    assert len(set(texts)) == 3
    alone = completion(server, **{**body, "n": 1, "seed": 12})["choices"][0]["text"]
    assert alone == texts[1]
    greedy = completion(server, prompt=prompt_of(10), ignore_eos=True)["choices"][0]["text"]
    for cut in ({"top_k": 1}, {"min_p": 1.0}):
        assert completion(server, **{**body, "n": 1, "temperature": 1.0, **cut})["choices"][0]["text"] == greedy


def test_stop_strings_and_stop_tokens_end_inside_a_block(server: LiveServer, eager: EagerBlocks) -> None:
    tokens = denoise(eager, prompt_of(21), FOUR, 13).tokens
    stop = tokens[6]
    first = tokens.index(stop)
    answer = completion(server, prompt=prompt_of(21), ignore_eos=True, stop_token_ids=[stop])
    assert answer["usage"]["completion_tokens"] == first + 1
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["text"] == text_of(server, tokens[:first])
    text = text_of(server, [stop])
    answer = completion(server, prompt=prompt_of(21), ignore_eos=True, stop=text)
    assert answer["choices"][0]["text"] == text_of(server, tokens).split(text)[0]
    late = completion(server, prompt=prompt_of(21), ignore_eos=True, stop_token_ids=[stop], min_tokens=13)
    assert late["usage"]["completion_tokens"] == 13


def test_chats_and_responses_take_the_same_fields(server: LiveServer) -> None:
    fields = {"denoising_steps": 2, "unmasking_strategy": "static_confidence", "temperature": 0}
    messages = [{"role": "user", "content": "hi"}]
    chat = post(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 9, **fields}).json()
    response = post(server, "/v1/responses", {"input": "hi", "max_output_tokens": 9, **fields}).json()
    assert response["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]


REFUSED: dict[str, dict[str, Any]] = {
    "response_format": {"response_format": {"type": "json_object"}},
    "guided_choice": {"guided_choice": ["a", "b"]},
    "structured_outputs.regex": {"structured_outputs": {"regex": "a+"}},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "presence_penalty": {"presence_penalty": -0.5},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "denoising_steps": {"denoising_steps": 5},
    "unmasking_strategy": {"unmasking_strategy": "random"},
    "confidence_threshold": {"confidence_threshold": 1.5},
    "entropy_bound": {"entropy_bound": -1},
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_has_no_order_to_hold_on_to_is_refused_by_name(server: LiveServer, field: str) -> None:
    for path, prompt in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        answer = post(server, path, {**prompt, **REFUSED[field]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text
        assert f"'{field}'" in answer.json()["error"]["message"]


def test_scored_prompts_are_refused_and_plain_echo_is_not(server: LiveServer) -> None:
    answer = post(server, "/v1/completions", {"prompt": "ab", "echo": True, "logprobs": 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "echo")
    assert completion(server, prompt="ab", echo=True)["choices"][0]["text"].startswith("ab")
    assert completion(server, prompt="ab", echo=True, max_tokens=0)["choices"][0]["text"] == "ab"


def load() -> list[dict[str, Any]]:
    """Sixteen requests: prompts of many lengths, all strategies, sampled and greedy, several choices."""
    bodies = []
    for index in range(16):
        body: dict[str, Any] = {"model": "tiny-sdar", "prompt": prompt_of(3 + 7 * index), "max_tokens": 9 + index}
        body |= {"temperature": 0.0 if index % 3 else 0.9, "seed": index, "ignore_eos": index % 4 == 0}
        body["unmasking_strategy"] = list(Unmasking)[index % 4].value
        body |= {"denoising_steps": 1 + index % 4} if index % 2 else {}
        body |= {"n": 2} if index % 5 == 0 else {}
        bodies.append(body)
    return bodies


async def texts(client: httpx.AsyncClient, body: dict[str, Any]) -> list[str]:
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


async def streamed(client: httpx.AsyncClient, on_text: Callable[[], None]) -> str:
    """A long answer; `on_text` is called with each piece."""
    body = {"model": "tiny-sdar", "prompt": prompt_of(30), "max_tokens": 150, "temperature": 0, "ignore_eos": True}
    found = ""
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                found += json.loads(line[6:])["choices"][0]["text"]
                on_text()
    return found


def test_every_answer_of_a_mixed_load_is_the_one_it_gets_alone(server: LiveServer) -> None:
    async def alone_and_together() -> list[tuple[list[str], list[str]]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT_S) as client:
            alone = [await texts(client, body) for body in load()]
            together = await asyncio.gather(*(texts(client, body) for body in load()))
            return list(zip(alone, together, strict=True))

    for alone, together in asyncio.run(alone_and_together()):
        assert together == alone


def test_answers_go_on_where_they_were_when_the_worker_dies(server: LiveServer) -> None:
    restarts = server.metric("hexserve:worker_restarts_total")

    async def undisturbed_and_disturbed() -> list[tuple[object, object]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT_S) as client:
            alone = [await streamed(client, lambda: None), *[await texts(client, body) for body in load()]]
            pieces: list[int] = []

            def kill_once() -> None:
                pieces.append(server.worker_pid() if len(pieces) == 3 else 0)
                if len(pieces) == 4:
                    os.kill(pieces[3], signal.SIGKILL)

            again = await asyncio.gather(streamed(client, kill_once), *(texts(client, body) for body in load()))
            return list(zip(alone, again, strict=True))

    for alone, again in asyncio.run(undisturbed_and_disturbed()):
        assert again == alone
    assert server.metric("hexserve:worker_restarts_total") == restarts + 1
