"""/api/embed and /api/embeddings over the scripted engine: vectors are [first token, tokens, 0, 1]."""

from typing import Any

import httpx
import numpy as np
import pytest

from server.api.ollama.routes import OllamaEmbedAnswer, OllamaEmbeddingsAnswer
from tests.server.answers import check_answer
from tests.server.scripted_engine import NAME, ScriptedEngine


@pytest.fixture
def embeds(engine: ScriptedEngine) -> ScriptedEngine:
    engine.embed()
    return engine


def unit(*numbers: float) -> Any:
    vector = np.array(numbers, np.float32)
    return pytest.approx([float(number) for number in vector / np.linalg.norm(vector)])


@pytest.mark.parametrize(("given", "vectors"), [("3 4", [(3, 3, 0, 1)]), (["3 4", "9"], [(3, 3, 0, 1), (9, 2, 0, 1)])])
async def test_one_text_or_many(
    client: httpx.AsyncClient, embeds: ScriptedEngine, given: Any, vectors: list[tuple[int, ...]]
) -> None:
    fields = {"model": f"{NAME}:latest", "input": given, "keep_alive": "5m", "options": {"num_ctx": 50, "stop": None}}
    answer = (await client.post("/api/embed", json=fields)).json()
    check_answer(OllamaEmbedAnswer, answer)
    assert answer["model"] == f"{NAME}:latest"
    assert answer["embeddings"] == [unit(*numbers) for numbers in vectors]
    assert answer["prompt_eval_count"] == sum(numbers[1] for numbers in vectors)
    assert answer["total_duration"] >= answer["load_duration"] >= 0


async def test_the_older_route_has_one_text_and_its_vector(client: httpx.AsyncClient, embeds: ScriptedEngine) -> None:
    answer = (await client.post("/api/embeddings", json={"model": NAME, "prompt": "3 4"})).json()
    check_answer(OllamaEmbeddingsAnswer, answer)
    assert answer == {"embedding": unit(3, 3, 0, 1)}


async def test_a_long_text_is_cut_unless_that_is_not_wanted(client: httpx.AsyncClient, embeds: ScriptedEngine) -> None:
    long = " ".join(["3"] * 500)
    for path, fields in (
        ("/api/embed", {"input": long}),
        ("/api/embed", {"input": long, "truncate": True}),
        ("/api/embeddings", {"prompt": long}),
    ):
        answer = await client.post(path, json={"model": NAME, **fields})
        assert answer.status_code == 200
    lengths = [len(request.prompt_ids) for request, *_ in embeds.submitted]
    assert lengths == [embeds.info.max_input] * 3
    refused = await client.post("/api/embed", json={"model": NAME, "input": long, "truncate": False})
    assert (refused.status_code, "maximum context length" in refused.json()["error"]) == (400, True)


async def test_fewer_dimensions_where_the_model_allows(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.embed(may_cut=True)
    answer = await client.post("/api/embed", json={"model": NAME, "input": "3 4", "dimensions": 2})
    assert answer.json()["embeddings"] == [unit(3, 3)]
    engine.embed(may_cut=False)
    refused = await client.post("/api/embed", json={"model": NAME, "input": "3 4", "dimensions": 2})
    assert (refused.status_code, "cannot be shortened" in refused.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/api/embed", {"input": []}, "'input'"),
        ("/api/embed", {"input": [3, 4]}, "'input[0]'"),
        ("/api/embed", {"input": "3", "keep_alive": "soon"}, "'keep_alive'"),
        ("/api/embed", {"input": "3", "options": {"nonsense": 1}}, "'options.nonsense'"),
        ("/api/embeddings", {"prompt": ["3"]}, "'prompt'"),
        ("/api/embeddings", {"input": "3"}, "'prompt'"),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "3"}]},
            "generates no text; it makes embeddings and answers",
        ),
    ],
)
async def test_what_is_wrong_is_named(
    client: httpx.AsyncClient, embeds: ScriptedEngine, path: str, fields: dict[str, Any], named: str
) -> None:
    answer = await client.post(path, json={"model": NAME, **fields})
    assert (answer.status_code, list(answer.json())) == (400, ["error"])
    assert named in answer.json()["error"]


@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
async def test_a_model_that_makes_no_embeddings(client: httpx.AsyncClient, path: str) -> None:
    text = {"input": "3"} if path == "/api/embed" else {"prompt": "3"}
    answer = await client.post(path, json={"model": NAME, **text})
    assert (answer.status_code, "does not make embeddings" in answer.json()["error"]) == (400, True)
