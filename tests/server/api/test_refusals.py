"""Every wrong request gets its status, type, code and param, and the server goes on."""

from typing import Any

import httpx
import msgspec
import pytest

from engine.bundle.answer_format import AnswerFormat
from tests.call_formats import THINK
from tests.server.scripted_engine import NAME, ScriptedEngine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = {"model": NAME, "messages": [{"role": "user", "content": "hello"}]}
WORDS = {"model": NAME, "prompt": "hello"}
LONG = "x" * 5000
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"} | fields]}


def part(**fields: Any) -> dict[str, Any]:
    return message(content=[fields])


CHAT_ROWS: list[tuple[dict[str, Any], str, str | None]] = [
    # the body beside HELLO, the code, the param
    ({"temperature": "hot"}, "invalid_type", "temperature"),
    ({"temperature": True}, "invalid_type", "temperature"),
    ({"temperature": -0.1}, "decimal_below_min_value", "temperature"),
    ({"temperature": 2.5}, "decimal_above_max_value", "temperature"),
    ({"top_p": 1.5}, "decimal_above_max_value", "top_p"),
    ({"top_p": -1}, "decimal_below_min_value", "top_p"),
    ({"min_p": 2.0}, "decimal_above_max_value", "min_p"),
    ({"top_k": -2}, "integer_below_min_value", "top_k"),
    ({"repetition_penalty": 0.0}, "decimal_below_min_value", "repetition_penalty"),
    ({"n": 0}, "integer_below_min_value", "n"),
    ({"n": 17}, "integer_above_max_value", "n"),
    ({"n": 10**9}, "integer_above_max_value", "n"),
    ({"n": 10**30}, "integer_above_max_value", "n"),
    ({"n": 1.0}, "invalid_type", "n"),
    ({"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
    ({"max_completion_tokens": 0}, "integer_below_min_value", "max_completion_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "invalid_value", "max_tokens"),
    ({"max_tokens": 3, "min_tokens": 4}, "invalid_value", "min_tokens"),
    ({"max_tokens": 100}, "context_length_exceeded", "messages"),
    (message(content="word " * 100), "context_length_exceeded", "messages"),
    ({"logprobs": 1}, "invalid_type", "logprobs"),
    ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "integer_above_max_value", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 10**6}, "integer_above_max_value", "top_logprobs"),
    ({"stop": ["a"] * 17}, "array_above_max_length", "stop"),
    ({"stop": ["a"] * 10_000}, "array_above_max_length", "stop"),
    ({"stop": ["a", ""]}, "string_below_min_length", "stop[1]"),
    ({"stop": "x" * 513}, "string_above_max_length", "stop"),
    ({"stop": [1]}, "invalid_type", "stop[0]"),
    ({"stop_token_ids": [1000]}, "invalid_value", "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "integer_below_min_value", "stop_token_ids[0]"),
    ({"logit_bias": {"hello": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"1000": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"5": 101}}, "decimal_above_max_value", "logit_bias.5"),
    ({"logit_bias": {str(i): 0 for i in range(301)}}, "array_above_max_length", "logit_bias"),
    ({"logit_bias": [1]}, "invalid_type", "logit_bias"),
    ({"seed": 2**63}, "integer_above_max_value", "seed"),
    ({"seed": "7"}, "invalid_type", "seed"),
    ({"frequency_penalty": -2.1}, "decimal_below_min_value", "frequency_penalty"),
    ({"presence_penalty": 3}, "decimal_above_max_value", "presence_penalty"),
    ({"stream": "yes"}, "invalid_type", "stream"),
    ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    ({"stream": True, "stream_options": {"verbose": 1}}, "unknown_parameter", "stream_options.verbose"),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": 1}},
        "invalid_type",
        "stream_options.continuous_usage_stats",
    ),
    ({"truncate_prompt_tokens": 0}, "invalid_value", "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 100}, "invalid_value", "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -2}, "integer_below_min_value", "truncate_prompt_tokens"),
    ({"best_of": 2}, "unknown_parameter", "best_of"),
    ({"colour": "red"}, "unknown_parameter", "colour"),
    ({LONG: 1}, "unknown_parameter", LONG[:199] + "…"),
    ({"tools": TOOLS, "tool_choice": "perhaps"}, "unsupported_value", "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "missing_required_parameter", "tool_choice.function"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nobody"}}},
        "invalid_value",
        "tool_choice.function.name",
    ),
    ({"tools": TOOLS, "parallel_tool_calls": "no"}, "invalid_type", "parallel_tool_calls"),
    ({"tool_choice": "auto"}, "invalid_value", "tool_choice"),
    ({"tools": [], "parallel_tool_calls": True}, "invalid_value", "parallel_tool_calls"),
    ({"tools": TOOLS * 129}, "array_above_max_length", "tools"),
    ({"tools": [{"type": "web_search"}]}, "unsupported_value", "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function"),
    (
        {"tools": [{"type": "function", "function": {"name": "no spaces"}}]},
        "invalid_value",
        "tools[0].function.name",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]},
        "invalid_type",
        "tools[0].function.strict",
    ),
    ({"functions": []}, "unsupported_parameter", "functions"),
    ({"response_format": {"type": "structural_tag"}}, "unsupported_value", "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "missing_required_parameter",
        "response_format.json_schema.name",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
        "invalid_value",
        "response_format.json_schema.name",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": []}}},
        "invalid_type",
        "response_format.json_schema.schema",
    ),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "invalid_value", "guided_regex"),
    ({"structured_outputs": {}}, "invalid_value", "structured_outputs"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "invalid_value", "structured_outputs"),
    ({"structured_outputs": {"structural_tag": "x"}}, "unsupported_parameter", "structured_outputs.structural_tag"),
    ({"structured_outputs": {"xml": "x"}}, "unknown_parameter", "structured_outputs.xml"),
    ({"structured_outputs": {"choice": []}}, "array_below_min_length", "structured_outputs.choice"),
    ({"structured_outputs": {"choice": [""]}}, "string_below_min_length", "structured_outputs.choice[0]"),
    ({"structured_outputs": {"json": 3}}, "invalid_type", "structured_outputs.json"),
    ({"guided_regex": "a" * 16_385}, "string_above_max_length", "guided_regex"),
    ({"guided_choice": ["a"] * 8193}, "array_above_max_length", "guided_choice"),
    ({"guided_json": []}, "invalid_type", "guided_json"),
    ({"guided_grammar": 7}, "invalid_type", "guided_grammar"),
    ({"reasoning_effort": "huge"}, "unsupported_value", "reasoning_effort"),
    ({"thinking_token_budget": 5}, "unsupported_parameter", "thinking_token_budget"),
    ({"thinking_token_budget": -1}, "integer_below_min_value", "thinking_token_budget"),
    ({"verbosity": "low"}, "unsupported_value", "verbosity"),
    ({"chat_template_kwargs": {"enable_thinking": "no"}}, None, "chat_template_kwargs.enable_thinking"),
    ({"chat_template_kwargs": {str(i): 1 for i in range(17)}}, "array_above_max_length", "chat_template_kwargs"),
    ({"chat_template": "{{ x }}"}, "unsupported_parameter", "chat_template"),
    ({"chat_template_kwargs": {"tokenize": True}}, None, "chat_template_kwargs.tokenize"),
    ({"service_tier": "free"}, "unsupported_value", "service_tier"),
    ({"store": "yes"}, "invalid_type", "store"),
    ({"modalities": ["audio"]}, "unsupported_value", "modalities[0]"),
    ({"metadata": {"a": 1}}, "invalid_type", "metadata.a"),
    ({"messages": []}, "array_below_min_length", "messages"),
    ({"messages": "hello"}, "invalid_type", "messages"),
    ({"messages": None}, "invalid_type", "messages"),
    ({"messages": ["hello"]}, "invalid_type", "messages[0]"),
    ({"messages": [{"content": "x"}]}, "missing_required_parameter", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
    ({"messages": [{"role": "assistant"}]}, "missing_required_parameter", "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "missing_required_parameter", "messages[0].tool_call_id"),
    (message(role="wizard"), "unsupported_value", "messages[0].role"),
    (message(role=LONG), "unsupported_value", "messages[0].role"),
    (message(content=5), "invalid_type", "messages[0].content"),
    (message(content=[]), "array_below_min_length", "messages[0].content"),
    (message(content=""), None, "messages"),
    (message(content=[{"type": "text"}]), "missing_required_parameter", "messages[0].content[0].text"),
    (
        message(content=[{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "file:///etc"}}]),
        "unsupported_value",
        "messages[0].content[1].type",
    ),
    (message(weight=1), "unknown_parameter", "messages[0].weight"),
    # a key named as the tag of its union
    (part(type="text", text="a", foo=1), "unknown_parameter", "messages[0].content[0].foo"),
    (part(type="text", text="a", cache_control=5), "invalid_type", "messages[0].content[0].cache_control"),
    (part(type="text", text=5), "invalid_type", "messages[0].content[0].text"),
    (part(type="image_url", image_url={"url": "x"}, foo=1), "unknown_parameter", "messages[0].content[0].foo"),
    (
        part(type="image_url", image_url={"bar": 1}),
        "missing_required_parameter",
        "messages[0].content[0].image_url.url",
    ),
    (
        part(type="image_url", image_url={"url": "x", "bar": 1}),
        "unknown_parameter",
        "messages[0].content[0].image_url.bar",
    ),
    ({"messages": [{"role": "tool", "tool": 1}]}, "missing_required_parameter", "messages[0].content"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}, "foo": 1}},
        "unknown_parameter",
        "response_format.foo",
    ),
    ({"tools": [{"type": "function", "function": {}}]}, "missing_required_parameter", "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, "unknown_parameter", "tools[0].function.x"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {}}]}]},
        "missing_required_parameter",
        "messages[0].tool_calls[0].function.name",
    ),
    ({"model": 5}, "invalid_type", "model"),
    ({"model": LONG}, "string_above_max_length", "model"),
]

TEXT_ROWS: list[tuple[dict[str, Any], str | None, str | None]] = [
    ({"prompt": ""}, None, "prompt"),
    ({"prompt": []}, "array_below_min_length", "prompt"),
    ({"prompt": None}, "invalid_type", "prompt"),
    ({"prompt": 5}, "invalid_type", "prompt"),
    ({"prompt": [1.5]}, "invalid_type", "prompt[0]"),
    ({"prompt": ["a", 1]}, "invalid_type", "prompt[1]"),
    ({"prompt": [1, "a"]}, "invalid_type", "prompt[1]"),
    ({"prompt": [-1]}, "integer_below_min_value", "prompt[0]"),
    ({"prompt": [1000]}, None, "prompt"),
    ({"prompt": [[1], [1000]]}, None, "prompt[1]"),
    ({"prompt": [[1], []]}, "array_below_min_length", "prompt[1]"),
    ({"prompt": ["a", ""]}, None, "prompt[1]"),
    ({"prompt": ["a"] * 1025}, "array_above_max_length", "prompt"),
    ({"prompt": ["a"] * 9, "n": 2}, "array_above_max_length", "prompt"),
    ({"prompt": [5] * 100}, "context_length_exceeded", "prompt"),
    ({"prompt": "a", "max_tokens": 200}, "context_length_exceeded", "prompt"),
    ({"logprobs": 21}, "integer_above_max_value", "logprobs"),
    ({"logprobs": True}, "invalid_type", "logprobs"),
    ({"echo": "yes"}, "invalid_type", "echo"),
    ({"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
    ({"max_tokens": -1, "echo": True}, "integer_below_min_value", "max_tokens"),
    ({"suffix": "x"}, "unsupported_parameter", "suffix"),
    ({"best_of": 0}, "integer_below_min_value", "best_of"),
    ({"best_of": 17}, "integer_above_max_value", "best_of"),
    ({"best_of": 10**9}, "integer_above_max_value", "best_of"),
    ({"best_of": 1, "n": 2}, "invalid_value", "best_of"),
    ({"best_of": 2, "stream": True}, "invalid_value", "best_of"),
    ({"prompt": ["a"] * 9, "best_of": 2}, "array_above_max_length", "prompt"),
    ({"messages": []}, "unknown_parameter", "messages"),
]


async def refused(client: httpx.AsyncClient, path: str, status: int = 400, **request: Any) -> Any:
    """The error of a request that must fail, its envelope checked."""
    answer = await client.post(path, **request)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert 0 < len(body["error"]["message"]) <= 1000
    return body["error"]


def name(row: tuple[dict[str, Any], str | None, str | None]) -> str:
    return f"{str(row[0])[:40]}->{row[1]}"


@pytest.mark.parametrize("row", CHAT_ROWS, ids=name)
async def test_a_wrong_chat(client: httpx.AsyncClient, engine: ScriptedEngine, row: tuple[Any, str, str]) -> None:
    fields, code, param = row
    error = await refused(client, CHAT, json=HELLO | fields)
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert not engine.live


@pytest.mark.parametrize("row", TEXT_ROWS, ids=name)
async def test_a_wrong_completion(client: httpx.AsyncClient, engine: ScriptedEngine, row: tuple[Any, str, str]) -> None:
    fields, code, param = row
    error = await refused(client, TEXT, json=WORDS | fields)
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert not engine.live


async def test_tools_for_a_model_that_takes_none(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.write(answer=AnswerFormat(reasoning=THINK))
    error = await refused(client, CHAT, json=HELLO | {"tools": TOOLS})
    assert (error["code"], error["param"]) == ("unsupported_parameter", "tools")


@pytest.mark.parametrize("field", ["model", "messages"])
async def test_a_missing_field(client: httpx.AsyncClient, field: str) -> None:
    error = await refused(client, CHAT, json={key: value for key, value in HELLO.items() if key != field})
    assert (error["code"], error["param"]) == ("missing_required_parameter", field)


BAD_BODIES: list[tuple[str, bytes]] = [
    ("malformed", b'{"model": '),
    ("not an object", b"[1]"),
    ("null", b"null"),
    ("a string", b'"hello"'),
    ("invalid UTF-8", b'{"model": "\xff\xfe"}'),
    ("encoded surrogate", b'{"model": "\xed\xa0\x80"}'),
    ("lone surrogate", b'{"model": "\\ud800"}'),
    ("NaN", b'{"temperature": NaN}'),
    ("Infinity", b'{"temperature": Infinity}'),
    ("overflowing number", b'{"temperature": 1e999}'),
    ("5000 digits", b'{"seed": ' + b"1" * 5000 + b"}"),
    ("depth bomb", b'{"model": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
    ("objects in depth", b'{"a":' * 5000 + b"1" + b"}" * 5000),
    ("100 levels", b'{"model": ' + b"[" * 100 + b"]" * 100 + b"}"),
    ("too many keys", msgspec.json.encode({str(i): 1 for i in range(5000)})),
    ("trailing text", b'{"model": "x"} {}'),
    ("byte order mark", b'\xef\xbb\xbf{"model": "x"}'),
    ("empty", b""),
]


@pytest.mark.parametrize("body", [body for _, body in BAD_BODIES], ids=[label for label, _ in BAD_BODIES])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_bad_body(client: httpx.AsyncClient, path: str, body: bytes) -> None:
    error = await refused(client, path, content=body, headers={"content-type": "application/json"})
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", None, None)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (415, {}),
        (415, {"content-type": "text/plain"}),
        (415, {"content-type": "application/x-www-form-urlencoded"}),
        (415, {"content-type": "application/json", "content-encoding": "gzip"}),
        (413, {"content-type": "application/json", "content-length": "70000"}),
        (413, {"content-type": "application/json", "content-length": "9" * 40}),
        (400, {"content-type": "application/json", "content-length": "-1"}),
    ],
)
async def test_refused_before_the_body_is_read(client: httpx.AsyncClient, status: int, headers: dict[str, str]) -> None:
    error = await refused(client, CHAT, status, content=b"{}", headers=headers)
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", None, None)


async def test_a_body_that_turns_out_too_large(client: httpx.AsyncClient) -> None:
    async def pieces() -> Any:
        for _ in range(20):
            yield b" " * 4096

    await refused(client, CHAT, 413, content=pieces(), headers={"content-type": "application/json"})


async def test_json_with_a_charset_is_json(client: httpx.AsyncClient) -> None:
    body = msgspec.json.encode(HELLO)
    answer = await client.post(CHAT, content=body, headers={"content-type": "application/json; charset=utf-8"})
    assert answer.status_code == 200


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("model", ["other", "", "../../etc/passwd", "scripted\r\nX: y"])
async def test_an_unknown_model(client: httpx.AsyncClient, path: str, model: str) -> None:
    error = await refused(client, path, 404, json=(HELLO if path == CHAT else WORDS) | {"model": model})
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "model_not_found", "model")


async def test_a_huge_bad_value_is_not_echoed(client: httpx.AsyncClient) -> None:
    error = await refused(client, CHAT, json=HELLO | {"service_tier": "y" * 50_000})
    assert "yyy" in error["message"]
    assert len(error["message"]) < 400


async def test_a_thousand_errors_are_one(client: httpx.AsyncClient) -> None:
    error = await refused(client, TEXT, json=WORDS | {"prompt": [1] + ["x"] * 10_000})
    assert error["param"] == "prompt[1]"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v1/responses", 405),
        ("GET", "/v1/responses/resp_1", 404),
        ("GET", CHAT, 405),
        ("PUT", TEXT, 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/v1/models/scripted", 405),
        ("POST", "/health", 405),
        ("OPTIONS", CHAT, 405),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/chat/completions/", 404),
        ("GET", "/redoc", 404),
        ("POST", "/docs", 405),
        ("GET", "/tokenize", 405),
    ],
)
async def test_an_unknown_path_or_method(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == ("model_not_found" if "/v1/models/" in path and status == 404 else None)
    assert answer.headers["x-request-id"]
    if status == 405:
        assert answer.headers["allow"]
