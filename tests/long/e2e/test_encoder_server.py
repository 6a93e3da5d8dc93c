"""`hexserve serve` of encoder bundles: the vectors are transformers' own, and everything else is refused by name."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from tests.live import LiveServer, serving
from tests.tiny_encoder import write_encoder, write_pooling

TEXTS = ["The cat sat.", "a dog", "The cat sat on the document and searched: 1, 2, 3.", "on " * 40, "x"]
LONGEST = 64


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A bundle and the transformers model that it was made of."""
    folder = tmp_path_factory.mktemp("encoder")
    model = write_encoder(folder / "tiny-nomic", "NomicBert")
    write_pooling(folder / "tiny-nomic", "mean_tokens", max_tokens=LONGEST)
    arguments = CompileArguments(folder / "tiny-nomic", folder / "bundle", quant=Quant.FP32, rows=(16, 64, 96))
    compile_bundle(arguments, SilentProgress())
    return folder, model


@pytest.fixture(scope="module")
def server(made: tuple[Path, Any]) -> Iterator[LiveServer]:
    with serving("--bundle", str(made[0] / "bundle"), cache=made[0] / "cache") as running:
        yield running


def expected(made: tuple[Path, Any], text: str) -> np.ndarray:
    """The mean of the rows of one text alone, its special tokens among them, of length 1."""
    tokenizer = Tokenizer.from_file(str(made[0] / "tiny-nomic" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = tokenizer.encode(text).ids
    with torch.no_grad():
        hidden = made[1].double()(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
    vector = hidden.mean(axis=0)
    return np.asarray(vector / np.linalg.norm(vector))


def embed(server: LiveServer, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/embeddings", json={"model": "tiny-nomic"} | body, timeout=60)


def test_vectors_are_those_of_transformers(server: LiveServer, made: tuple[Path, Any]) -> None:
    answer = embed(server, input=TEXTS)
    assert answer.status_code == 200, answer.text
    found = [item["embedding"] for item in answer.json()["data"]]
    for text, vector in zip(TEXTS, found, strict=True):
        assert np.dot(vector, expected(made, text)) > 0.99999


def test_the_prompts_of_tasks(server: LiveServer, made: tuple[Path, Any]) -> None:
    for name, prefix in (("query", "search_query: "), ("document", "search_document: ")):
        vector = embed(server, input="a cat", prompt_name=name).json()["data"][0]["embedding"]
        assert np.dot(vector, expected(made, f"{prefix}a cat")) > 0.99999
    refused = embed(server, input="a cat", prompt_name="other")
    assert refused.status_code == 400
    assert "'query', 'document', 'classification', 'clustering'" in refused.json()["error"]["message"]


def test_token_ids_are_taken_as_they_are(server: LiveServer, made: tuple[Path, Any]) -> None:
    tokenizer = Tokenizer.from_file(str(made[0] / "tiny-nomic" / "tokenizer.json"))
    ids = [token for token in tokenizer.encode("the cat").ids if token]
    answer = embed(server, input=ids).json()
    assert answer["usage"]["prompt_tokens"] == len(ids) == 4
    assert np.dot(answer["data"][0]["embedding"], expected(made, "the cat")) > 0.99999


def test_a_text_that_is_too_long_is_refused_or_cut(server: LiveServer) -> None:
    refused = embed(server, input="cat " * LONGEST)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert f"maximum context length is {LONGEST} tokens" in refused.json()["error"]["message"]
    cut = embed(server, input="cat " * LONGEST, truncate_prompt_tokens=-1).json()
    whole = embed(server, input="cat " * (LONGEST - 2)).json()
    assert cut["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] == LONGEST
    assert cut["data"][0]["embedding"] == whole["data"][0]["embedding"]


def test_hundreds_of_texts_come_back_in_order(server: LiveServer, made: tuple[Path, Any]) -> None:
    texts = [TEXTS[index % 3] for index in range(300)]
    found = [item["embedding"] for item in embed(server, input=texts).json()["data"]]
    wanted = [expected(made, text) for text in TEXTS[:3]]
    assert min(float(np.dot(vector, wanted[index % 3])) for index, vector in enumerate(found)) > 0.99999


def test_texts_survive_the_death_of_the_worker(server: LiveServer, made: tuple[Path, Any]) -> None:
    """It is killed while most of them wait: the next one computes those, and the caller sees nothing of it."""
    texts = [TEXTS[index % 3] for index in range(600)]
    before = server.metric("hexserve:steps_total")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(embed, server, input=texts)
        while server.metric("hexserve:steps_total") == before:
            assert not answer.done()
        os.kill(server.worker_pid(), signal.SIGKILL)
        found = [item["embedding"] for item in answer.result().json()["data"]]
    wanted = [expected(made, text) for text in TEXTS[:3]]
    assert min(float(np.dot(vector, wanted[index % 3])) for index, vector in enumerate(found)) > 0.99999
    assert any("worker" in line and "go on with the next one" in line for line in server.lines)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("completions", {"prompt": "hello"}),
        ("responses", {"input": "hello"}),
        ("rerank", {"query": "hello", "documents": ["a"]}),
    ],
)
def test_what_an_encoder_does_not_do_is_refused_by_name(server: LiveServer, path: str, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{server.url}/v1/{path}", json={"model": "tiny-nomic"} | body)
    assert answer.status_code == 400
    assert "embed" in answer.json()["error"]["message"]


def test_models_and_tokens(server: LiveServer) -> None:
    listed = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["tiny-nomic"]
    assert listed[0]["max_model_len"] == LONGEST
    meta = listed[0]["meta"]
    assert (meta["family"], meta["quant"], meta["kv_bytes_per_token"]) == ("nomic_bert", "fp32", 0)
    assert meta["variants"] == ["16 rows", "64 rows", "96 rows"]
    tokens = httpx.post(f"{server.url}/tokenize", json={"prompt": "the cat"}).json()
    assert tokens["count"] == 4  # with the two that its tokenizer adds, as its embedding costs
    assert "cat" in httpx.post(f"{server.url}/detokenize", json={"tokens": tokens["tokens"]}).json()["prompt"]


def test_an_encoder_beside_a_chat_model(made: tuple[Path, Any]) -> None:
    """Two models of one server, each loaded by the request that names it, and each refusing what it cannot do."""
    with serving("demo", f"vectors={made[0] / 'bundle'}", cache=made[0] / "cache") as running:
        answer = httpx.post(f"{running.url}/v1/embeddings", json={"model": "vectors", "input": TEXTS[0]}, timeout=120)
        assert answer.status_code == 200, answer.text
        assert np.dot(answer.json()["data"][0]["embedding"], expected(made, TEXTS[0])) > 0.99999
        message = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        chats = [
            httpx.post(f"{running.url}/v1/chat/completions", json={"model": name} | message, timeout=120)
            for name in ("demo", "vectors")
        ]
        assert [chat.status_code for chat in chats] == [200, 400]
        assert "/v1/embeddings" in chats[1].json()["error"]["message"]
