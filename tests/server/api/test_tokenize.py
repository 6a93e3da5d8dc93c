"""/tokenize, /detokenize, /tokenizer_info: vLLM's shapes over the embedded model's tokenizer."""

from typing import Any

import httpx
import pytest

from engine.client.engine import EngineState
from tests.server.scripted_engine import END_ID, NAME, ScriptedEngine

CHAT: Any = [{"role": "user", "content": "hello there"}]


async def test_a_text(client: httpx.AsyncClient) -> None:
    answer = await client.post("/tokenize", json={"prompt": "a b c", "model": NAME})
    assert answer.json() == {"count": 4, "max_model_len": 100, "tokens": [1, 5, 5, 5], "token_strs": None}
    body = {"prompt": "a b", "add_special_tokens": False, "return_token_strs": True}
    assert (await client.post("/tokenize", json=body)).json() == {
        "count": 2,
        "max_model_len": 100,
        "tokens": [5, 5],
        "token_strs": ["w5", "w5"],
    }
    assert (await client.post("/tokenize", json={"prompt": "", "add_special_tokens": False})).json()["tokens"] == []


async def test_a_text_has_as_many_tokens_as_its_embedding_costs(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.embed(begin_ids=(7,))
    counted = (await client.post("/tokenize", json={"prompt": "a b c"})).json()
    embedded = (await client.post("/v1/embeddings", json={"model": NAME, "input": "a b c"})).json()
    assert counted["tokens"] == [7, 5, 5, 5, END_ID]
    assert counted["count"] == embedded["usage"]["prompt_tokens"]
    plain = await client.post("/tokenize", json={"prompt": "a b c", "add_special_tokens": False})
    assert plain.json()["tokens"] == [5, 5, 5]


async def test_a_chat(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    body = {"messages": CHAT, "add_generation_prompt": False, "add_special_tokens": False}
    assert (await client.post("/tokenize", json=body)).json()["count"] == 2
    assert engine.options == [{"add_generation_prompt": False}]


async def test_a_chat_shows_the_tools_that_an_answer_would(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": {**function, "strict": True}}]
    for path in ("/tokenize", "/v1/chat/completions"):
        answer = await client.post(path, json={"model": NAME, "messages": CHAT, "tools": tools})
        assert answer.status_code == 200, answer.text
    assert engine.tools == [[{"type": "function", "function": function}]] * 2


async def test_back_to_text(client: httpx.AsyncClient) -> None:
    assert (await client.post("/detokenize", json={"tokens": [3, 4]})).json() == {"prompt": "w3 w4"}
    assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


async def test_what_the_tokenizer_is(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    info = (await client.get("/tokenizer_info")).json()
    assert (info["tokenizer_class"], info["bos_token"], info["eos_token"]) == (
        "PreTrainedTokenizerFast",
        "<s>",
        "<end>",
    )
    assert info["chat_template"] == "{{ messages }}"
    engine.state = EngineState.LOADING
    assert (await client.get("/tokenizer_info")).status_code == 503


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("/tokenize", {}, 400, "missing_required_parameter", "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "invalid_type", "prompt"),
        ("/tokenize", {"prompt": ["a"]}, 400, "invalid_type", "prompt"),
        ("/tokenize", {"prompt": "a", "messages": CHAT}, 400, "unknown_parameter", "prompt"),
        ("/tokenize", {"prompt": "a", "colour": 1}, 400, "unknown_parameter", "colour"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model_not_found", "model"),
        ("/tokenize", {"messages": []}, 400, "array_below_min_length", "messages"),
        ("/tokenize", {"messages": [{"role": "wizard"}]}, 400, "unsupported_value", "messages[0].role"),
        ("/tokenize", {"messages": CHAT, "chat_template": "x"}, 400, "unsupported_parameter", "chat_template"),
        ("/detokenize", {}, 400, "missing_required_parameter", "tokens"),
        ("/detokenize", {"tokens": [1000]}, 400, None, "tokens[0]"),
        ("/detokenize", {"tokens": [1, -1]}, 400, "integer_below_min_value", "tokens[1]"),
        ("/detokenize", {"tokens": ["a"]}, 400, "invalid_type", "tokens[0]"),
        ("/detokenize", {"tokens": [True]}, 400, "invalid_type", "tokens[0]"),
        ("/detokenize", {"tokens": [2**70]}, 400, "integer_above_max_value", "tokens[0]"),
    ],
)
async def test_refusals(
    client: httpx.AsyncClient, path: str, body: Any, status: int, code: str | None, param: str
) -> None:
    answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
