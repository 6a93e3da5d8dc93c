"""A stream that breaks off at any place and goes on at another server reads as if nothing had happened."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from server.generation.stream import COMMENT, RESUMABLE, Resumption, noted
from tests.live import LiveServer, serving

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a short story."}]}),
    "two sampled choices": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "n": 2, "temperature": 0.9},
    ),
    "a tool call": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": [TOOL]},
    ),
    "completion with log-probabilities": ("/v1/completions", {"prompt": "Once upon", "max_tokens": 24, "logprobs": 2}),
    "a stop string": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Copy this list: apple, pear, plum, fig"}], "stop": ["plum"]},
    ),
    "a form": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Give me a JSON object with name Ann and age 31."}],
            "response_format": {"type": "json_object"},
        },
    ),
}


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[LiveServer, LiveServer]]:
    options = ("--bundle", "demo", "--resumable", "--deterministic")  # so that even log-probabilities are the same
    with serving(*options) as one, serving(*options) as other:
        yield one, other


def groups(server: LiveServer, path: str, body: dict[str, Any], resumption: Resumption) -> list[tuple[bytes, bytes]]:
    """The stream as pairs: frames, and the comment behind them (b"" behind the last)."""
    wrapped = {"request": body, "resumption": json.loads(_encoded(resumption))}
    found: list[tuple[bytes, bytes]] = []
    frames = b""
    headers = {"Content-Type": RESUMABLE}
    with httpx.stream("POST", server.url + path, content=json.dumps(wrapped), headers=headers, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            raw = line.encode()
            if raw.startswith(COMMENT):
                found.append((frames, raw))
                frames = b""
            elif raw and not raw.startswith(b":"):
                frames += raw + b"\n"
    return [*found, (frames, b"")]


def _encoded(resumption: Resumption) -> bytes:
    import msgspec

    return msgspec.json.encode(resumption)


def read(frames: bytes) -> dict[str, Any]:
    """What a client makes of the stream: per choice its joined parts, and what is said once."""
    whole: dict[str, Any] = {"ids": set(), "done": 0, "usage": [], "choices": {}}
    for line in frames.decode().splitlines():
        if line == "data: [DONE]":
            whole["done"] += 1
            continue
        chunk = json.loads(line.removeprefix("data: "))
        whole["ids"].add((chunk["id"], chunk["created"]))
        if usage := chunk.get("usage"):
            usage.pop("prompt_tokens_details")  # what a server has cached is its own
            whole["usage"].append(usage)
        for choice in chunk["choices"]:
            kept = whole["choices"].setdefault(choice["index"], {"text": "", "calls": "", "roles": 0, "finish": []})
            delta = choice.get("delta") or {"content": choice.get("text")}
            kept["roles"] += "role" in delta
            kept["text"] += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                kept["calls"] += (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
            kept["finish"] += [choice["finish_reason"]] if choice["finish_reason"] else []
            kept.setdefault("logprobs", []).append(choice.get("logprobs"))
    for kept in whole["choices"].values():
        kept["logprobs"] = _joined(kept["logprobs"])
    return whole


def _joined(lists: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for each in lists:
        for name, values in (each or {}).items():
            found.setdefault(name, []).extend(values or [])
    return found


@pytest.mark.parametrize("case", CASES)
def test_whatever_the_place_of_the_break_the_whole_is_the_same(
    case: str, servers: tuple[LiveServer, LiveServer]
) -> None:
    path, fields = CASES[case]
    body = {"model": "demo", "max_tokens": 40, "temperature": 0, **fields, **ASKED}
    resumption = Resumption.new()
    whole = groups(servers[0], path, body, resumption)
    expected = read(b"".join(frames for frames, _ in whole))
    assert expected["done"] == 1 and len(whole) > 1
    for cut in sorted({1, len(whole) // 2, len(whole) - 1}):
        delivered = resumption
        for _, line in whole[:cut]:
            delivered = delivered.with_more(noted(line) or ())
        rest = groups(servers[1], path, body, delivered)
        found = read(b"".join(frames for frames, _ in [*whole[:cut], *rest]))
        assert found == expected, cut


RESPONSES: dict[str, dict[str, Any]] = {
    "a message": {"input": "Tell me a short story."},
    "a call": {
        "input": "What is the weather in Paris?",
        "tools": [{"type": "function", **TOOL["function"]}],
        "tool_choice": "required",
    },
}


def heard(frames: bytes) -> list[dict[str, Any]]:
    """The events of a stream of /v1/responses, neighbouring pieces of a text as one; numbers must follow each other."""
    found: list[dict[str, Any]] = []
    data = [line.removeprefix("data: ") for line in frames.decode().splitlines() if line.startswith("data: ")]
    for number, line in enumerate(data):
        event = json.loads(line)
        assert event.pop("sequence_number") == number, (number, event)
        if found and "delta" in event and found[-1]["type"] == event["type"]:
            found[-1]["delta"] += event["delta"]
        else:
            found.append(event)
    whole = found[-1]["response"]
    assert found[-1]["type"] == "response.completed" and whole.pop("completed_at")
    whole["usage"].pop("input_tokens_details")  # what a server has cached is its own
    return found


@pytest.mark.parametrize("case", RESPONSES)
def test_a_response_goes_on_with_the_same_items_and_the_next_numbers(
    case: str, servers: tuple[LiveServer, LiveServer]
) -> None:
    body = {"model": "demo", "temperature": 0, "stream": True, **RESPONSES[case]}
    resumption = Resumption.new()
    whole = groups(servers[0], "/v1/responses", body, resumption)
    expected = heard(b"".join(frames for frames, _ in whole))
    assert len(whole) > 1, "tokens that were made together are one piece, so there may be only two"
    for cut in sorted({1, len(whole) // 2, len(whole) - 1}):
        delivered = resumption
        for _, line in whole[:cut]:
            delivered = delivered.with_more(noted(line) or ())
        rest = groups(servers[1], "/v1/responses", body, delivered)
        assert heard(b"".join(frames for frames, _ in [*whole[:cut], *rest])) == expected, cut


def test_what_no_server_can_go_on_with_is_refused_by_name(servers: tuple[LiveServer, LiveServer]) -> None:
    body = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    new = json.loads(_encoded(Resumption.new()))
    for changes, told in (
        ({"seed": -1}, "`seed`|- at `$.seed`|>= 0"),
        ({"id": "a b"}, "at `$.id`"),
        ({"delivered": [{"choice": 0, "token_ids": [5] * 9}]}, "9 tokens were delivered, the answer has at most 4"),
        ({"delivered": [{"choice": 0, "token_ids": [1 << 30]}]}, "is not of this model"),
        ({"delivered": [{"choice": 0, "token_ids": [5]}] * 2}, "names a choice twice"),
        ({"more": 1}, "unknown field"),
    ):
        wrapped = {"request": body, "resumption": {**new, **changes}}
        answer = httpx.post(
            servers[0].url + "/v1/chat/completions",
            content=json.dumps(wrapped),
            headers={"Content-Type": RESUMABLE},
            timeout=60,
        )
        assert answer.status_code == 400
        assert any(each in answer.json()["error"]["message"] for each in told.split("|")), answer.text
        assert answer.json()["error"]["param"] == "resumption"


def test_formats_without_the_comments_take_none(servers: tuple[LiveServer, LiveServer]) -> None:
    wrapped = {
        "request": {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]},
        "resumption": json.loads(_encoded(Resumption.new())),
    }
    headers = {"Content-Type": RESUMABLE}
    answer = httpx.post(f"{servers[0].url}/v1/messages", content=json.dumps(wrapped), headers=headers)
    assert answer.status_code == 415 and answer.json()["type"] == "error"


def test_a_server_that_is_not_asked_to_takes_none() -> None:
    with serving("--bundle", "demo") as plain:
        wrapped = {"request": {"model": "demo", "prompt": "Hi"}, "resumption": {}}
        answer = httpx.post(
            f"{plain.url}/v1/completions", content=json.dumps(wrapped), headers={"Content-Type": RESUMABLE}
        )
        assert answer.status_code == 415
