"""POST /v1/embeddings over the scripted engine: a token for each word, vectors [first token, tokens, 0, 1]."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest

from server.api.openai.embeddings import EmbeddingList
from tests.server.answers import check_answer
from tests.server.scripted_engine import NAME, ScriptedEngine

ROUTE = "/v1/embeddings"


@pytest.fixture(autouse=True)
def _embeds(engine: ScriptedEngine) -> None:
    engine.embed()


async def post(client: httpx.AsyncClient, given: Any, **fields: Any) -> httpx.Response:
    return await client.post(ROUTE, json={"model": NAME, "input": given} | fields)


def unit(*numbers: float) -> list[float]:
    vector = np.array(numbers, np.float32)
    return [float(number) for number in vector / np.linalg.norm(vector)]


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("3 4", [(3, 4, 2)]),
        (["3 4", "9"], [(3, 4, 2), (9, 2)]),
        ([3, 4], [(3, 4)]),
        ([[3, 4], [9]], [(3, 4), (9,)]),
        ([""], [(2,)]),
    ],
    ids=["text", "texts", "ids", "lists of ids", "nothing but the model's own token"],
)
async def test_every_form_of_input(
    given: Any, prompts: list[tuple[int, ...]], client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    """A text gets the model's end token, ids are what they are."""
    answer = await post(client, given)
    assert answer.status_code == 200, answer.text
    check_answer(EmbeddingList, answer.json())
    assert [request.prompt_ids for request, *_ in engine.submitted] == prompts
    assert all(request.params.max_tokens == 0 and request.pooling for request, *_ in engine.submitted)
    body = answer.json()
    assert (body["object"], body["model"]) == ("list", NAME)
    assert [entry["index"] for entry in body["data"]] == list(range(len(prompts)))
    for entry, ids in zip(body["data"], prompts, strict=True):
        assert entry["embedding"] == pytest.approx(unit(ids[0], len(ids), 0, 1))
    tokens = sum(map(len, prompts))
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


async def test_base64_is_float32_little_endian(client: httpx.AsyncClient) -> None:
    written = (await post(client, "3 4", encoding_format="base64")).json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(written), "<f4").tolist() == pytest.approx(unit(3, 3, 0, 1))


async def test_fewer_dimensions_have_length_one_again(client: httpx.AsyncClient) -> None:
    answer = await post(client, "3 4", dimensions=2)
    assert answer.json()["data"][0]["embedding"] == pytest.approx(unit(3, 3))


async def test_vectors_of_a_model_that_normalises_none(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.embed(normalise=False)
    assert (await post(client, "3 4")).json()["data"][0]["embedding"] == [3, 3, 0, 1]


async def test_more_inputs_than_the_queue_holds(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    """They take turns; the answer has them in order."""
    answer = await post(client, [[number] for number in range(500)])
    assert answer.status_code == 200, answer.text
    assert [request.prompt_ids for request, *_ in engine.submitted] == [(number,) for number in range(500)]
    second = [entry["embedding"][0] / entry["embedding"][1] for entry in answer.json()["data"]]
    assert second == pytest.approx(list(range(500)), rel=1e-5)
    assert engine.live == set()


async def test_a_long_input_is_cut_only_when_asked(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    """The first tokens are kept, and the model's end token."""
    long = " ".join(map(str, range(10, 210)))
    answer = await post(client, ["1", long])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
    assert "100 tokens" in error["message"] and engine.submitted == []
    for asked, kept in ((-1, 100), (100, 100), (7, 7)):
        engine.submitted.clear()
        assert (await post(client, ["1", long], truncate_prompt_tokens=asked)).status_code == 200
        assert engine.submitted[1][0].prompt_ids == (*range(10, 10 + kept - 1), 2)
    assert (await post(client, [[5] * 101])).json()["error"]["param"] == "input[0]"
    assert (await post(client, [5] * 100)).status_code == 200


async def test_a_named_prompt_stands_before_the_text(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    assert (await post(client, "3", prompt_name="query")).status_code == 200
    assert engine.submitted[0][0].prompt_ids == (7, 8, 3, 2)
    refused = (await post(client, "3", prompt_name="passage")).json()["error"]
    assert refused["param"] == "prompt_name" and "'query'" in refused["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a", 5]}, "input[1]"),
        ({"input": [1000]}, "input[0]"),
        ({"input": [[3], [4, 1000]]}, "input[1][1]"),
        ({"input": None}, "input"),
        ({"input": [""] * 2049}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 5}, "dimensions"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 101}, "truncate_prompt_tokens"),
        ({"unknown": 1}, "unknown"),
        ({"user": 1}, "user"),
    ],
)
async def test_refusals_name_the_field(fields: dict[str, Any], param: str, client: httpx.AsyncClient) -> None:
    answer = await client.post(ROUTE, json={"model": NAME, "input": "a"} | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_a_model_whose_vectors_cannot_be_cut(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.embed(may_cut=False)
    assert (await post(client, "a", dimensions=4)).status_code == 200
    assert (await post(client, "a", dimensions=3)).json()["error"]["param"] == "dimensions"


async def test_unknown_models(client: httpx.AsyncClient) -> None:
    answer = await client.post(ROUTE, json={"model": "other", "input": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ],
)
async def test_an_embedder_answers_nothing_else(route: str, body: dict[str, Any], client: httpx.AsyncClient) -> None:
    answer = await client.post(route, json={"model": NAME} | body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "model_not_supported")
    assert "embed" in answer.json()["error"]["message"]
