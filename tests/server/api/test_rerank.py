"""POST /v1/rerank over the scripted engine. What yes outweighs no by is a document's tokens (all in all) less 90."""

import math
from typing import Any

import httpx
import pytest

from server.api.rerank import Ranking
from tests.server.answers import check_answer
from tests.server.scripted_engine import NAME, ScriptedEngine


@pytest.fixture
def reranker(engine: ScriptedEngine) -> ScriptedEngine:
    engine.rerank()
    return engine


async def post(client: httpx.AsyncClient, documents: list[Any], **fields: Any) -> httpx.Response:
    return await client.post("/v1/rerank", json={"model": NAME, "query": "3", "documents": documents} | fields)


def expected(tokens: int) -> float:
    return 1 / (1 + math.exp(90 - tokens))


async def test_documents_come_best_first(client: httpx.AsyncClient, reranker: ScriptedEngine) -> None:
    answer = await post(client, ["1", {"text": "1 2 3"}, "1 2"])
    assert answer.status_code == 200, answer.text
    check_answer(Ranking, answer.json())
    assert [request.prompt_ids for request, *_ in reranker.submitted] == [
        (90, 6, 3, 1, 91),
        (90, 6, 3, 1, 2, 3, 91),
        (90, 6, 3, 1, 2, 91),
    ]
    body = answer.json()
    assert [(entry["index"], entry["document"]["text"]) for entry in body["results"]] == [
        (1, "1 2 3"),
        (2, "1 2"),
        (0, "1"),
    ]
    assert [entry["relevance_score"] for entry in body["results"]] == pytest.approx(
        [expected(7), expected(6), expected(5)]
    )
    assert body["usage"] == {"prompt_tokens": 18, "total_tokens": 18}
    assert body["model"] == NAME and body["id"].startswith("rerank-")


@pytest.mark.parametrize("route", ["/v1/rerank", "/rerank", "/v2/rerank"])
async def test_paths_and_fields(route: str, client: httpx.AsyncClient, reranker: ScriptedEngine) -> None:
    fields = {"top_n": 1, "return_documents": False, "instruction": "8 9", "max_tokens_per_doc": 2, "user": "me"}
    body = {"model": NAME, "query": "3", "documents": ["1", "1 2 3 4"]} | fields
    answer = await client.post(route, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["results"] == [{"index": 1, "relevance_score": pytest.approx(expected(7))}]
    assert reranker.submitted[1][0].prompt_ids == (90, 8, 9, 3, 1, 2, 91)


async def test_equal_scores_keep_their_order(client: httpx.AsyncClient, reranker: ScriptedEngine) -> None:
    results = (await post(client, ["1", "2", "3"])).json()["results"]
    assert [entry["index"] for entry in results] == [0, 1, 2]


async def test_a_long_document_is_cut_only_when_asked(client: httpx.AsyncClient, reranker: ScriptedEngine) -> None:
    error = (await post(client, ["1", "1 " * 200])).json()["error"]
    assert (error["param"], error["code"]) == ("documents[1]", "context_length_exceeded")
    assert (await post(client, ["1", "1 " * 200], truncate_prompt_tokens=-1)).status_code == 200
    ids = reranker.submitted[-1][0].prompt_ids
    assert (len(ids), ids[0], ids[-1]) == (100, 90, 91)
    error = (await post(client, ["1"], truncate_prompt_tokens=2)).json()["error"]
    assert error["param"] == "truncate_prompt_tokens" and "3 tokens" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": ""}, "query"),
        ({"query": None}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"documents": ["a", {"title": "b"}]}, "documents[1]"),
        ({"top_n": 0}, "top_n"),
        ({"unknown": 1}, "unknown"),
    ],
)
async def test_refusals_name_the_field(
    fields: dict[str, Any], param: str, client: httpx.AsyncClient, reranker: ScriptedEngine
) -> None:
    answer = await post(client, **({"documents": ["a"]} | fields))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize("route", ["/v1/rerank", "/v1/embeddings"])
async def test_a_chat_model_does_neither(route: str, client: httpx.AsyncClient) -> None:
    body = {"query": "a", "documents": ["b"]} if route.endswith("rerank") else {"input": "a"}
    answer = await client.post(route, json={"model": NAME} | body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "model_not_supported")
    assert "'generate'" in answer.json()["error"]["message"]


async def test_a_judge_still_chats(client: httpx.AsyncClient, reranker: ScriptedEngine) -> None:
    body = {"model": NAME, "messages": [{"role": "user", "content": "a"}]}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello there, friend!"
