"""What Open WebUI sends over its two kinds of connection, with the settings of docs/clients/open-webui.md.

Written after its backend (`routers/ollama.py`, `routers/openai.py`, `utils/payload.py`), which is too large to install.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.servers import KEY, OBEDIENT_MODEL

PAGE = Path(__file__).parents[2] / "docs" / "clients" / "open-webui.md"
DOCUMENTED = "http://127.0.0.1:8000"
TAGGED = f"{OBEDIENT_MODEL}:latest"
USER = {"X-OpenWebUI-User-Name": "Jo%20Doe", "X-OpenWebUI-User-Id": "1", "X-OpenWebUI-User-Role": "admin"}
ASK = 'call: forecast {"city": "Oslo"}'
TOOL = {
    "type": "function",
    "function": {
        "name": "forecast",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def settings(name: str) -> dict[str, str]:
    """The block of the page that sets `name` to something."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = [dict(line.split("=", 1) for line in block.split()) for block in blocks]
    return next(block for block in found if name in block)


class Connection:
    """Open WebUI's end: the documented address, of a server that listens elsewhere here and has a key."""

    def __init__(self, documented: str, url: str) -> None:
        assert documented.startswith(DOCUMENTED)
        self._base = documented.replace(DOCUMENTED, url)
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}", **USER}

    def get(self, path: str) -> Any:
        answer = httpx.get(f"{self._base}{path}", headers=self._headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, payload: Mapping[str, Any]) -> httpx.Response:
        body = json.dumps(payload)
        return httpx.post(f"{self._base}{path}", content=body, headers=self._headers, timeout=60)


@pytest.fixture
def ollama(obedient: str) -> Connection:
    return Connection(settings("OLLAMA_BASE_URL")["OLLAMA_BASE_URL"], obedient)


@pytest.fixture
def openai(obedient: str) -> Connection:
    return Connection(settings("OPENAI_API_BASE_URL")["OPENAI_API_BASE_URL"], obedient)


def lines(answer: httpx.Response) -> list[Any]:
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson"), answer.text
    return [json.loads(line) for line in answer.iter_lines()]


def events(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    data = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(one) for one in data]


def test_an_ollama_connection_finds_its_model(ollama: Connection) -> None:
    """The model of a chat gets the tag if it has none, and is then looked for in the list."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", ollama.get("/api/version")["version"])
    listed = ollama.get("/api/tags")["models"]
    assert [(model["name"], model["model"]) for model in listed] == [(TAGGED, TAGGED)]
    assert [model["name"] for model in ollama.get("/api/ps")["models"]] == [TAGGED]
    assert "completion" in ollama.post("/api/show", {"model": TAGGED}).json()["capabilities"]


def test_an_ollama_connection_chats(ollama: Connection) -> None:
    payload = {
        "model": TAGGED,
        "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello there"}],
        "stream": True,
        "options": {"temperature": 0.2, "num_predict": 50, "top_k": 20, "use_mmap": True, "stop": ["\n\n"]},
        "keep_alive": "10m",
        "think": False,
    }
    said = lines(ollama.post("/api/chat", payload))
    assert "".join(line["message"]["content"] for line in said) == "Hello there"
    assert said[-1]["done"] and said[-1]["eval_count"] / (said[-1]["eval_duration"] / 1e9) > 0
    # A title for the chat: a task, whole.
    task = {"model": TAGGED, "messages": payload["messages"], "stream": False, "options": {"num_predict": 1000}}
    assert ollama.post("/api/chat", task).json()["message"]["content"] == "Hello there"


def test_an_ollama_connection_calls_tools(ollama: Connection) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": ASK}]
    payload = {"model": TAGGED, "messages": messages, "stream": True, "tools": [TOOL]}
    [call] = [
        call for line in lines(ollama.post("/api/chat", payload)) for call in line["message"].get("tool_calls", [])
    ]
    assert call["function"]["arguments"] == {"city": "Oslo"}
    function = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
    called = {"index": call["function"]["index"], "id": call["id"], "function": function}
    messages += [
        {"role": "assistant", "tool_calls": [called], "content": ""},
        {"role": "tool", "content": "rain", "tool_call_id": call["id"]},
    ]
    assert "".join(line["message"]["content"] for line in lines(ollama.post("/api/chat", payload))) == "rain"


def test_an_ollama_connection_shows_the_sentence_of_an_error(ollama: Connection) -> None:
    answer = ollama.post("/api/chat", {"model": TAGGED, "messages": [], "options": {"mirostat": 2}})
    assert (answer.status_code, "options.mirostat" in answer.json()["error"]) == (400, True)


def test_an_openai_connection_chats(openai: Connection) -> None:
    assert [model["id"] for model in openai.get("/models")["data"]] == [OBEDIENT_MODEL]
    payload = {
        "stream": True,
        "model": OBEDIENT_MODEL,
        "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello there"}],
        "stream_options": {"include_usage": True},
        "temperature": 0.2,
        "max_tokens": 50,
    }
    chunks = events(openai.post("/chat/completions", payload))
    said = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(said) == "Hello there"
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    task = {
        "model": OBEDIENT_MODEL,
        "messages": payload["messages"],
        "stream": False,
        "max_completion_tokens": 1000,
    }
    answer = openai.post("/chat/completions", task).json()
    assert answer["choices"][0]["message"]["content"] == "Hello there"


def test_an_openai_connection_calls_tools(openai: Connection) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": ASK}]
    payload = {"stream": True, "model": OBEDIENT_MODEL, "messages": messages, "tools": [TOOL]}
    deltas = [chunk["choices"][0]["delta"] for chunk in events(openai.post("/chat/completions", payload))]
    pieces = [call for delta in deltas for call in delta.get("tool_calls", [])]
    arguments = "".join(piece["function"]["arguments"] for piece in pieces)
    assert json.loads(arguments) == {"city": "Oslo"}
    call = {"id": pieces[0]["id"], "type": "function", "index": 0}
    function = {"name": "forecast", "arguments": arguments}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [{**call, "function": function}]},
        {"role": "tool", "tool_call_id": pieces[0]["id"], "content": "rain"},
    ]
    deltas = [chunk["choices"][0]["delta"] for chunk in events(openai.post("/chat/completions", payload))]
    assert "".join(delta.get("content") or "" for delta in deltas) == "rain"
