"""Anthropic's Python SDK judges: what it parses, raises and streams is what an application gets."""

# servers: demo limited full brief narrow thinks mistral

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import anthropic
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from checking import MODEL, base_url, check, run
from pydantic import BaseModel

PATIENCE_S = 120
LONG = "say: " + "one two three four five " * 500
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


def options_of(server: str, **more: Any) -> Any:
    """What a client of a server is made with."""
    address = {"base_url": base_url(server).removesuffix("/v1"), "api_key": os.environ["OPENAI_API_KEY"]}
    return address | {"max_retries": 0, "timeout": PATIENCE_S} | more


def sdk(server: str, **more: Any) -> Anthropic:
    """A client of a server."""
    return Anthropic(**options_of(server, **more))


client = sdk("scripted")


class Trip(BaseModel):
    """Plan a trip."""

    kind: Literal["long", "short"]
    days: int


def tool(name: str, **more: Any) -> Any:
    """A tool with a city and a number of days."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "maximum": 99}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    return {"name": name, "input_schema": schema} | more


TOOLS = [tool("get_weather"), tool("get_time")]
ASK_BOTH = "Use get_weather and get_time for 'Oslo' and 'Rome', 3 days and 4 days."
BOTH = [(name, {"city": "Oslo", "days": 3}) for name in ("get_weather", "get_time")]
ASK_TIME = 'call: get_time {"city": "Rome", "days": 1}'


def user(content: Any) -> list[Any]:
    """A conversation of one turn."""
    return [{"role": "user", "content": content}]


def body(content: Any, **more: Any) -> Any:
    """The arguments of a request."""
    return {"model": MODEL, "max_tokens": 4000, "messages": user(content)} | more


def ask(content: Any, **more: Any) -> Any:
    """The answer to one turn of the user."""
    return client.messages.create(**body(content, **more))


def calls(message: Any) -> list[tuple[str, Any]]:
    """Names and inputs of the calls of an answer."""
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


@contextmanager
def raises(kind: type[anthropic.APIError], status: int, error: str, *words: str) -> Iterator[None]:
    """The block must raise exactly this class, with Anthropic's type of the error and these words."""
    try:
        yield
    except anthropic.APIStatusError as raised:
        found: Any = raised.body
        assert type(raised) is kind, f"{type(raised).__name__}: {raised}"
        assert (raised.status_code, found["type"], found["error"]["type"]) == (status, "error", error), str(raised)
        assert raised.request_id and found["request_id"] == raised.request_id
        assert all(word in found["error"]["message"] for word in words), str(raised)
        return
    raise AssertionError(f"{kind.__name__} was not raised")


@check
def message() -> None:
    answer = ask("Hello, नमस्ते 👩‍🚀")
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].text == "Hello, नमस्ते 👩‍🚀"
    assert (answer.role, answer.type, answer.model, answer.stop_reason) == ("assistant", "message", MODEL, "end_turn")
    assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0 and answer.stop_sequence is None
    assert answer.id.startswith("msg_") and answer._request_id


@check
def message_of_the_model() -> None:
    answer = sdk("demo").messages.create(
        model="demo", max_tokens=40, messages=user("What is the capital of France?"), extra_body={"temperature": 0}
    )
    assert "Paris" in answer.content[0].text


@check
def system_and_blocks() -> None:
    cached: Any = {"type": "ephemeral"}
    turns: Any = [
        {"role": "user", "content": [{"type": "text", "text": "one", "cache_control": cached}]},
        {"role": "assistant", "content": [{"type": "text", "text": "two"}]},
        {"role": "user", "content": [{"type": "text", "text": "three"}]},
    ]
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    answer = client.messages.create(
        model=MODEL,
        max_tokens=99,
        system=system,
        messages=turns,
        metadata={"user_id": "u"},
        service_tier="auto",
        extra_body={"top_p": 0.9, "top_k": 5, "temperature": 0.5},  # no arguments any more from version 1 on
    )
    assert answer.content[0].text == "three" and answer.usage.service_tier == "standard"


@check
def an_answer_goes_back_as_it_came() -> None:
    first = ask("one")
    turns = [*user("one"), {"role": "assistant", "content": first.content}, *user("two")]
    assert client.messages.create(model=MODEL, max_tokens=99, messages=turns).content[0].text == "two"


@check
def stop_sequences() -> None:
    answer = ask("one two three", stop_sequences=["nine", " three"])
    assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == ("one two", "stop_sequence", " three")


@check
def max_tokens() -> None:
    answer = ask("one two three four five", max_tokens=2)
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 2)


@check
def cached_tokens_are_told() -> None:
    text = "A long beginning. " * 60
    ask(text)
    usage = ask(text).usage
    assert usage.cache_read_input_tokens > usage.input_tokens > 0 and usage.cache_creation_input_tokens == 0


@check
def count_tokens() -> None:
    asked: Any = {"system": "Be brief.", "tools": TOOLS, "messages": user("Hello there")}
    counted = client.messages.count_tokens(model=MODEL, **asked)
    usage = client.messages.create(model=MODEL, max_tokens=99, **asked).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@check
def stream() -> None:
    events = list(client.messages.create(**body("one two three"), stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert "".join(event.delta.text for event in events[2:-3]) == "one two three"
    assert events[-2].delta.stop_reason == "end_turn" and events[-2].usage.output_tokens > 0


@check
def stream_helper() -> None:
    with client.messages.stream(**body("Grüße नमस्ते 👩\u200d👩\u200d👧")) as events:
        assert "".join(events.text_stream) == "Grüße नमस्ते 👩\u200d👩\u200d👧"
        final = events.get_final_message()
    whole = ask("Grüße नमस्ते 👩\u200d👩\u200d👧")
    assert final.content[0].text == whole.content[0].text and final.stop_reason == whole.stop_reason
    total = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    assert total == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    assert final.usage.output_tokens == whole.usage.output_tokens


@check
def stream_stop_sequence() -> None:
    with client.messages.stream(**body("one two three", stop_sequences=[" three"])) as events:
        final = events.get_final_message()
    assert (final.content[0].text, final.stop_sequence) == ("one two", " three")


@check
def stream_pings_while_waiting() -> None:
    narrow = sdk("narrow")
    held = narrow.messages.create(**body(LONG), stream=True)
    next(iter(held))
    with narrow.messages.with_streaming_response.create(**body("me too"), stream=True) as response:
        lines = (line for line in response.iter_lines() if line.startswith("event: "))
        assert [next(lines), next(lines)] == ["event: message_start", "event: ping"]
        held.close()
        rest = [line for line in lines if line != "event: ping"]
    assert rest[-1] == "event: message_stop"


@check
def stream_parsed_behind_pings() -> None:
    narrow = sdk("narrow")
    held = narrow.messages.create(**body(LONG), stream=True)
    next(iter(held))
    threading.Timer(0.5, held.close).start()
    with narrow.messages.stream(**body("me too")) as events:
        assert events.get_final_text() == "me too"


@check
def stream_error_midway() -> None:
    events = iter(sdk("brief").messages.create(**body(LONG), stream=True))
    assert next(events).type == "message_start"
    try:
        list(events)
    except anthropic.APIStatusError as raised:
        found: Any = raised.body
        assert found["error"]["type"] == "timeout_error" and found["request_id"] == raised.request_id
        return
    raise AssertionError("no error was raised")


@check
def stream_closed_early() -> None:
    for _ in range(3):
        with client.messages.create(**body(LONG), stream=True) as events:
            next(iter(events))
    assert ask("still there").content[0].text == "still there"


@check
def tools_round_trip() -> None:
    turns = user("What is the weather in 'Oslo' for 3 days?")
    first = client.messages.create(model=MODEL, max_tokens=200, tools=TOOLS, messages=turns)
    assert calls(first) == [("get_weather", {"city": "Oslo", "days": 3})] and first.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "rain"}
    turns += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(model=MODEL, max_tokens=200, tools=TOOLS, messages=turns)
    assert second.content[0].text == "rain" and second.stop_reason == "end_turn"


@check
def tools_that_fail() -> None:
    turns: Any = user(ASK_TIME)
    first = client.messages.create(model=MODEL, max_tokens=200, tools=TOOLS, messages=turns)
    block = {"type": "tool_result", "tool_use_id": first.content[-1].id, "is_error": True}
    result = block | {"content": [{"type": "text", "text": "no clock"}]}
    turns += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(model=MODEL, max_tokens=200, tools=TOOLS, messages=turns)
    assert second.content[0].text == "Error: no clock"


@check
def tools_parallel() -> None:
    assert calls(ask(ASK_BOTH, tools=TOOLS)) == BOTH
    assert calls(ask(ASK_BOTH, tools=TOOLS, tool_choice={"type": "any"})) == BOTH


@check
def tools_not_parallel() -> None:
    for kind in ("auto", "any"):
        choice = {"type": kind, "disable_parallel_tool_use": True}
        assert len(calls(ask(ASK_BOTH, tools=TOOLS, tool_choice=choice))) == 1


@check
def tools_forced() -> None:
    assert len(calls(ask("say: no", tools=TOOLS, tool_choice={"type": "any"}))) == 1
    answer = ask("say: no", tools=TOOLS, tool_choice={"type": "tool", "name": "get_time"})
    assert [name for name, _ in calls(answer)] == ["get_time"] and answer.stop_reason == "tool_use"


@check
def tools_forbidden() -> None:
    answer = ask("get_time", tools=TOOLS, tool_choice={"type": "none"})
    assert not calls(answer) and answer.content[0].text == "get_time"


@check
def tools_strict() -> None:
    answer = ask("get_time for 'Rome', 7 days", tools=[tool("get_time", strict=True)])
    assert calls(answer) == [("get_time", {"city": "Rome", "days": 7})]


@check
def tools_without_arguments() -> None:
    now = {"name": "now", "description": "the time", "input_schema": {"type": "object", "properties": {}}}
    assert calls(ask("call: now", tools=[now])) == [("now", {})]


@check
def tools_streamed() -> None:
    for choice in ({"type": "auto"}, {"type": "any"}):
        with client.messages.stream(**body(ASK_BOTH, tools=TOOLS, tool_choice=choice)) as events:
            parts = [event.partial_json for event in events if event.type == "input_json"]
            final = events.get_final_message()
        assert calls(final) == BOTH
        assert len(parts) > 4 and "".join(parts).count("{") == 2


@check
def tools_in_another_format() -> None:
    answer = sdk("mistral").messages.create(**body(ASK_BOTH, tools=TOOLS))
    assert [name for name, _ in calls(answer)] == ["get_weather", "get_time"]


@check
def tools_loaded_later() -> None:
    search, late = tool("search"), tool("get_time", defer_loading=True)
    assert calls(ask("get_time", tools=[search, late]))[0][0] == "search"
    found = [{"type": "tool_reference", "tool_name": "get_time"}]
    turns: Any = user('call: search {"city": "a", "days": 1}\nthen\n' + ASK_TIME)
    first = client.messages.create(model=MODEL, max_tokens=200, tools=[search, late], messages=turns)
    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": found}
    turns += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(model=MODEL, max_tokens=200, tools=[search, late], messages=turns)
    assert calls(second) == [("get_time", {"city": "Rome", "days": 1})]


@check
def tool_runner() -> None:
    @beta_tool
    def get_weather(city: str, days: int) -> str:
        """Weather of a city.

        Args:
            city: where
            days: how many
        """
        return f"{city}: rain for {days} days"

    for is_stream in (False, True):
        asked = body("Weather in 'Oslo', 3 days", tools=[get_weather], stream=is_stream)
        final = client.beta.messages.tool_runner(**asked).until_done()
        assert final.content[0].text == "Oslo: rain for 3 days"


@check
def output_of_a_schema() -> None:
    answer = client.messages.parse(**body("A short trip of 3 days"), output_format=Trip)
    assert isinstance(answer.parsed_output, Trip)
    with client.messages.stream(**body("A short trip of 3 days"), output_format=Trip) as events:
        assert isinstance(events.get_final_message().parsed_output, Trip)


@check
def thinking() -> None:
    answer = sdk("thinks").messages.create(**body("Hi", thinking={"type": "enabled", "budget_tokens": 1024}))
    first, second = answer.content
    assert (first.type, first.thinking, second.text) == ("thinking", "The user said something.", "Hi")
    assert first.signature


@check
def thinking_is_bounded() -> None:
    answer = sdk("thinks").messages.create(**body("Hi", thinking={"type": "enabled", "budget_tokens": 3}))
    first, second = answer.content
    assert first.thinking != "The user said something." and "The user said something.".startswith(first.thinking)
    assert second.text == "Hi"


@check
def thinking_streamed() -> None:
    asked = body("Hi", thinking={"type": "adaptive"})
    with sdk("thinks").messages.stream(**asked) as events:
        kinds = [event.type for event in events]
        final = events.get_final_message()
    assert kinds.index("thinking") < kinds.index("signature") < kinds.index("text")
    assert final.content[0].thinking == "The user said something." and final.content[0].signature


@check
def thinking_off() -> None:
    thinks = sdk("thinks")
    assert [block.type for block in thinks.messages.create(**body("Hi")).content] == ["text"]
    answer = thinks.messages.create(**body("Hi", thinking={"type": "disabled"}))
    assert [block.type for block in answer.content] == ["text"]


@check
def thinking_left_out_and_sent_back() -> None:
    thinks, setting = sdk("thinks"), {"type": "adaptive", "display": "omitted"}
    turns = user(ASK_TIME + "\nthen\nsay: done")
    first = thinks.messages.create(model=MODEL, max_tokens=500, tools=TOOLS, thinking=setting, messages=turns)
    assert [block.type for block in first.content] == ["thinking", "tool_use"]
    assert first.content[0].thinking == "" and len(first.content[0].signature) > 20
    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "noon"}
    turns += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = thinks.messages.create(model=MODEL, max_tokens=500, tools=TOOLS, thinking=setting, messages=turns)
    assert second.content[-1].text == "done"


@check
def thinking_of_a_model_that_does_not() -> None:
    answer = ask("Hi", thinking={"type": "adaptive"}, output_config={"effort": "high"})
    assert [block.type for block in answer.content] == ["text"]
    with raises(anthropic.BadRequestError, 400, "invalid_request_error", "thinking"):
        ask("Hi", thinking={"type": "enabled", "budget_tokens": 1024})


@check
def models() -> None:
    (model,) = client.models.list()
    assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
    assert client.models.retrieve(MODEL).created_at == model.created_at


@check
def raw_response() -> None:
    headers = {"anthropic-beta": "not-a-beta-2030-01-01", "x-request-id": "mine-1.2"}
    raw = client.messages.with_raw_response.create(**body("hi"), extra_headers=headers, extra_query={"beta": "true"})
    assert raw.headers["request-id"] == "mine-1.2" and raw.parse().content[0].text == "hi"


@check
def a_bearer_token() -> None:
    with_token = Anthropic(
        base_url=base_url("scripted").removesuffix("/v1"), auth_token=os.environ["OPENAI_API_KEY"], api_key=None
    )
    assert with_token.messages.create(**body("hi")).content[0].text == "hi"


@check
def error_400() -> None:
    with raises(
        anthropic.BadRequestError, 400, "invalid_request_error", "messages[0].content[0].source", "reads text only"
    ):
        ask([IMAGE])
    searching: Any = [{"type": "web_search_20250305", "name": "web_search"}]
    with raises(anthropic.BadRequestError, 400, "invalid_request_error", "tools[0].type", "web_search_20250305"):
        ask("hi", tools=searching)
    with raises(anthropic.BadRequestError, 400, "invalid_request_error", "no_such_field"):
        ask("hi", extra_body={"no_such_field": 1})
    with raises(anthropic.BadRequestError, 400, "invalid_request_error", "must end with a turn of the user"):
        client.messages.create(
            model=MODEL, max_tokens=9, messages=[*user("hi"), {"role": "assistant", "content": "The"}]
        )


@check
def error_400_of_a_long_prompt() -> None:
    with raises(anthropic.BadRequestError, 400, "invalid_request_error", "prompt is too long: ", " maximum"):
        ask("one two three four five " * 8_000)


@check
def error_401() -> None:
    with raises(anthropic.AuthenticationError, 401, "authentication_error"):
        sdk("scripted", api_key="sk-wrong").messages.create(**body("hi"))


@check
def error_404() -> None:
    with raises(anthropic.NotFoundError, 404, "not_found_error", "claude-opus-4"):
        ask("hi", model="claude-opus-4")
    with raises(anthropic.NotFoundError, 404, "not_found_error"):
        client.models.retrieve("claude-opus-4")
    with raises(anthropic.NotFoundError, 404, "not_found_error"):
        client.messages.batches.list()


@check
def error_413() -> None:
    kind = getattr(anthropic, "ContentTooLargeError", None) or anthropic._exceptions.RequestTooLargeError
    with raises(kind, 413, "request_too_large"):
        ask("x" * 9_000_000)


@check
def error_429() -> None:
    limited = sdk("limited")
    with suppress(anthropic.RateLimitError):  # another client may have been here within the minute
        limited.messages.create(**body("hi"))
    with raises(anthropic.RateLimitError, 429, "rate_limit_error"):
        limited.messages.create(**body("hi"))


@check
def error_529() -> None:
    full = sdk("full")
    with full.messages.create(**body(LONG), stream=True) as events:
        next(iter(events))
        with raises(anthropic._exceptions.OverloadedError, 529, "overloaded_error"):
            full.messages.create(**body("hi"))


@check
def retries_after_529() -> None:
    held = sdk("full").messages.create(**body(LONG), stream=True)
    next(iter(held))
    threading.Timer(0.5, held.close).start()
    assert sdk("full", max_retries=5).messages.create(**body("again")).content[0].text == "again"


@check
def error_504() -> None:
    kind = getattr(anthropic, "GatewayTimeoutError", anthropic.InternalServerError)
    with raises(kind, 504, "timeout_error"):
        sdk("brief").messages.create(**body(LONG))


@check
async def async_sixteen_at_once() -> None:
    async with AsyncAnthropic(**options_of("scripted")) as many:

        async def one(number: int) -> str:
            if number % 2:
                answer = await many.messages.create(**body(f"number {number}"))
                return str(answer.content[0].text)
            async with many.messages.stream(**body(f"number {number}")) as events:
                return await events.get_final_text()

        found = await asyncio.gather(*(one(number) for number in range(16)))
    assert found == [f"number {number}" for number in range(16)]


@check
async def async_cancelled_task() -> None:
    async with AsyncAnthropic(**options_of("scripted")) as many:
        task = asyncio.create_task(many.messages.create(**body(LONG)))
        events = await many.messages.create(**body(LONG), stream=True)
        await anext(aiter(events))
        task.cancel()
        await events.close()
        answer = await many.messages.create(**body("after"))
    assert json.loads(answer.to_json())["content"][0]["text"] == "after"


if __name__ == "__main__":
    run()
