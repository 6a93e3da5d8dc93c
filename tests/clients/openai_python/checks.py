"""openai-python judges: what it parses, raises and streams is what an application gets."""

# servers: demo limited full brief narrow mistral phi llama thinks stored embeds

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import openai
from checking import MODEL, base_url, check, run
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

PATIENCE_S = 120
ENDLESS = {"ignore_eos": True}
LONG: Any = {"max_tokens": 15_000, "extra_body": ENDLESS}
client = OpenAI(max_retries=0, timeout=PATIENCE_S)


class City(BaseModel):
    """A place."""

    name: str
    kind: Literal["town", "village"]
    people: int = Field(ge=0)


class Trip(BaseModel):
    """Plan a trip."""

    cities: list[City] = Field(min_length=1)
    note: str | None


class Colour(Enum):
    """Names of colours."""

    RED = "red"
    GREEN = "green"


class Circle(BaseModel):
    """Round."""

    kind: Literal["circle"]
    radius: float


class Square(BaseModel):
    """Not round."""

    kind: Literal["square"]
    side: int
    colour: Colour


class Branch(BaseModel):
    """Refers to itself."""

    value: int
    parts: list["Branch"]


class Everything(BaseModel):
    """Shapes of schemas that pydantic makes."""

    shape: Annotated[Circle | Square, Field(discriminator="kind")]
    either: int | str | None
    branch: Branch
    when: datetime
    day: date
    id: UUID
    code: str = Field(pattern="^[A-Z]{2}-[0-9]{3}$")
    word: str = Field(min_length=2, max_length=5)
    ratio: float = Field(gt=0, lt=1)
    even: int = Field(multiple_of=2, ge=10)
    two: list[bool] = Field(min_length=2, max_length=2)
    one_of: Literal[1, 2]
    colours: list[Colour]


class Small(BaseModel):
    """What a small model can end."""

    kind: Literal["cat", "dog"]
    ages: list[int] = Field(max_length=2)


class GetWeather(BaseModel):
    """Weather of a city."""

    city: str
    days: int


def function(name: str, strict: bool = False) -> Any:
    """A tool with a city and a number of days."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "maximum": 99}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}


TOOLS = [function("get_weather"), function("get_time")]
ASK_BOTH = "Use get_weather and get_time for 'Oslo' and 'Rome', 3 days and 4 days."


def user(text: str) -> list[Any]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


def create(text: str, **options: Any) -> Any:
    """The first choice of an answer."""
    return client.chat.completions.create(model=MODEL, messages=user(text), **options).choices[0]


def sdk(server: str, **options: Any) -> OpenAI:
    """A client of another server."""
    return OpenAI(**{"base_url": base_url(server), "max_retries": 0, "timeout": PATIENCE_S} | options)


@contextmanager
def raises(kind: type[openai.APIError], **attributes: Any) -> Iterator[None]:
    """The block must raise exactly this class, with these attributes."""
    try:
        yield
    except openai.APIError as error:
        assert type(error) is kind, repr(error)
        for name, value in attributes.items():
            assert getattr(error, name) == value, (name, getattr(error, name), str(error))
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


@check
def chat() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("Hello there, नमस्ते 👩‍🚀"))
    choice = answer.choices[0]
    assert choice.message.content == "Hello there, नमस्ते 👩‍🚀" and choice.message.role == "assistant"
    assert choice.finish_reason == "stop" and answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id


@check
def chat_roles_and_parts() -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages)
    assert answer.choices[0].message.content == "one\ntwo"


@check
def chat_answered_by_the_model() -> None:
    answer = sdk("demo").chat.completions.create(
        model="demo", messages=user("What is the capital of France?"), temperature=0, max_completion_tokens=40
    )
    assert "Paris" in (answer.choices[0].message.content or "")


@check
def chat_stop_and_length() -> None:
    stopped = create("one two three", stop=[" three"])
    assert stopped.message.content == "one two" and stopped.finish_reason == "stop"
    cut = create("one two three four five six", max_tokens=2)
    assert cut.finish_reason == "length" and "one two three four five six".startswith(cut.message.content)


@check
def chat_n() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("hi"), n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {"hi"}


@check
def chat_logprobs() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("hi you"), logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content and answer.usage
    assert len(logprobs.content) == answer.usage.completion_tokens
    for entry in logprobs.content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3 and entry.bytes is not None
    said = b"".join(bytes(entry.bytes or []) for entry in logprobs.content[:-1])
    assert said == b"hi you"


@check
def chat_logit_bias_and_seed() -> None:
    body: Any = {"model": "demo", "messages": user("Tell me a story."), "max_tokens": 12, "seed": 11}
    demo = sdk("demo")
    texts = {demo.chat.completions.create(**body).choices[0].message.content for _ in range(2)}
    assert len(texts) == 1
    forced = demo.chat.completions.create(**body, logit_bias={"40": 100}, logprobs=True, top_logprobs=0)
    assert forced.choices[0].logprobs and forced.choices[0].logprobs.content
    assert len({entry.token for entry in forced.choices[0].logprobs.content}) == 1


@check
def chat_accepts_what_openai_accepts() -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=user("hi"),
        temperature=0.5,
        top_p=0.9,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        user="someone",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        seed=1,
        response_format={"type": "text"},
        modalities=["text"],
        extra_body={"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.05},
    )
    assert answer.choices[0].finish_reason == "stop"


@check
def stream() -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=user("one two three"), stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


@check
def stream_usage() -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=MODEL, messages=user("hi"), stream=True, stream_options=options))
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 0


@check
def stream_n_and_logprobs() -> None:
    chunks = client.chat.completions.create(
        model=MODEL, messages=user("one two"), stream=True, n=2, logprobs=True, top_logprobs=2
    )
    texts, entries = {0: "", 1: ""}, {0: 0, 1: 0}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            entries[choice.index] += len(choice.logprobs.content or []) if choice.logprobs else 0
    whole = create("one two", logprobs=True)
    assert texts == {0: "one two", 1: "one two"}
    assert entries[0] == entries[1] == len(whole.logprobs.content)


@check
def stream_helper_events() -> None:
    with client.chat.completions.stream(model=MODEL, messages=user("a b c")) as events:
        kinds = [event.type for event in events]
        final = events.get_final_completion()
    assert kinds[0] == "chunk" and "content.delta" in kinds and "content.done" in kinds
    assert final.choices[0].message.content == "a b c"


@check
def stream_helper_n() -> None:
    many: Any = {"n": 3, "logprobs": True, "temperature": 1.0, "seed": 3}
    with client.chat.completions.stream(model=MODEL, messages=user("a b c"), **many) as events:
        final = events.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["a b c"] * 3
    with client.chat.completions.stream(model=MODEL, messages=user(ASK_BOTH), tools=TOOLS, n=2) as events:
        calls = [len(choice.message.tool_calls or []) for choice in events.get_final_completion().choices]
    assert calls == [2, 2]


@check
def stream_helper_calls_tools() -> None:
    tools: Any = [openai.pydantic_function_tool(GetWeather, name="get_weather")]
    ask = user('call: get_weather {"city": "Zürich", "days": 5}')
    with client.chat.completions.stream(model=MODEL, messages=ask, tools=tools) as events:
        deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
        final = events.get_final_completion()
    [call] = final.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == GetWeather(city="Zürich", days=5)
    assert "".join(event.arguments_delta for event in deltas) == call.function.arguments


@check
def stream_closed_early() -> None:
    demo = sdk("demo")
    for _ in range(3):
        with demo.chat.completions.create(
            model="demo", messages=user("Tell me a story."), stream=True, max_tokens=1500, extra_body=ENDLESS
        ) as chunks:
            next(iter(chunks))
    after = demo.chat.completions.create(model="demo", messages=user("Hello"), max_tokens=4)
    assert after.choices


@check
def stream_unicode_whole() -> None:
    text = "Grüße नमस्ते 👩\u200d👩\u200d👧 🏳️\u200d🌈 日本語 e\u0301"
    chunks = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(model=MODEL, messages=user(text), stream=True)
    ]
    assert "".join(chunks) == text and not any("\ufffd" in chunk for chunk in chunks)


@check
def stream_error_midway() -> None:
    chunks = iter(sdk("brief").chat.completions.create(model=MODEL, messages=user("hi"), stream=True, **LONG))
    assert next(chunks).choices[0].delta.role == "assistant"
    with raises(openai.APIError, code="timeout", type="server_error"):
        list(chunks)


@check
def stream_comments_while_waiting() -> None:
    narrow = sdk("narrow")
    held = narrow.chat.completions.create(model=MODEL, messages=user("hi"), stream=True, **LONG)
    next(iter(held))
    with narrow.chat.completions.with_streaming_response.create(
        model=MODEL, messages=user("me too"), stream=True
    ) as response:
        lines = response.iter_lines()
        assert next(line for line in lines if line).startswith(":")
        held.close()
        rest = [line for line in lines if line.startswith("data: {")]
    assert "".join(json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in rest) == "me too"


@check
def stream_parsed_behind_comments() -> None:
    narrow = sdk("narrow")
    held = narrow.chat.completions.create(model=MODEL, messages=user("hi"), stream=True, **LONG)
    next(iter(held))
    threading.Timer(0.5, held.close).start()
    with narrow.chat.completions.stream(model=MODEL, messages=user("me too")) as events:
        assert events.get_final_completion().choices[0].message.content == "me too"


@check
def with_raw_response() -> None:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=user("hi"))
    assert raw.status_code == 200 and raw.headers["x-request-id"] and raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].message.content == "hi"


@check
def with_streaming_response() -> None:
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=user("one two"), stream=True
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)


@check
def request_id_is_echoed() -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=user("hi"), extra_headers={"x-request-id": "mine-1.2"}
    )
    assert raw.headers["x-request-id"] == "mine-1.2"


@check
def tools_auto() -> None:
    choice = create('call: get_time {"city": "Rome", "days": 1}', tools=TOOLS)
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    [call] = choice.message.tool_calls
    assert call.id and call.function.name == "get_time"
    assert json.loads(call.function.arguments) == {"city": "Rome", "days": 1}


@check
def tools_auto_without_a_call() -> None:
    choice = create("say: no need", tools=TOOLS, tool_choice="auto")
    assert choice.message.content == "no need" and not choice.message.tool_calls and choice.finish_reason == "stop"


@check
def tools_n() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user(ASK_BOTH), tools=TOOLS, n=2)
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls or []]
    assert len(ids) == 4 == len(set(ids))


@check
def tools_without_parameters() -> None:
    tools: Any = [{"type": "function", "function": {"name": "ping"}}]
    for choice in ("auto", "required"):
        called = create("ping", tools=tools, tool_choice=choice).message.tool_calls
        assert [(call.function.name, call.function.arguments) for call in called] == [("ping", "{}")]


@check
def tools_none() -> None:
    choice = create("get_weather", tools=TOOLS, tool_choice="none")
    assert choice.message.content == "get_weather" and not choice.message.tool_calls


@check
def tools_required() -> None:
    choice = create("say: I will not", tools=TOOLS, tool_choice="required")
    assert choice.message.tool_calls and choice.finish_reason in ("tool_calls", "stop")
    assert set(json.loads(choice.message.tool_calls[0].function.arguments)) == {"city", "days"}


@check
def tools_named() -> None:
    named = {"type": "function", "function": {"name": "get_time"}}
    choice = create("get_weather", tools=TOOLS, tool_choice=named)
    assert [call.function.name for call in choice.message.tool_calls] == ["get_time"]


@check
def tools_parallel() -> None:
    choice = create(ASK_BOTH, tools=TOOLS)
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather", "get_time"]
    assert len({call.id for call in choice.message.tool_calls}) == 2


@check
def tools_not_parallel() -> None:
    choice = create(ASK_BOTH, tools=TOOLS, parallel_tool_calls=False)
    assert len(choice.message.tool_calls) == 1


def streamed_calls(server: OpenAI, text: str, **options: Any) -> tuple[list[dict[str, str]], Any]:
    """Calls put together from deltas as applications do it, and the last finish_reason."""
    calls: list[dict[str, str]] = []
    finish = None
    for chunk in server.chat.completions.create(model=MODEL, messages=user(text), tools=TOOLS, stream=True, **options):
        choice = chunk.choices[0]
        finish = choice.finish_reason or finish
        for delta in choice.delta.tool_calls or []:
            assert delta.function is not None
            if delta.index == len(calls):
                assert delta.id and delta.type == "function" and delta.function.name
                calls.append({"id": delta.id, "name": delta.function.name, "arguments": ""})
            calls[delta.index]["arguments"] += delta.function.arguments or ""
    return calls, finish


@check
def tools_streamed() -> None:
    calls, finish = streamed_calls(client, ASK_BOTH)
    assert [call["name"] for call in calls] == ["get_weather", "get_time"] and finish == "tool_calls"
    assert [set(json.loads(call["arguments"])) for call in calls] == [{"city", "days"}] * 2
    assert calls[0]["id"] != calls[1]["id"]


@check
def tools_streamed_required() -> None:
    calls, finish = streamed_calls(client, "hello", tool_choice="required")
    assert len(calls) == 1 and finish in ("tool_calls", "stop")
    assert set(json.loads(calls[0]["arguments"])) == {"city", "days"}


def every_format(server: str) -> None:
    """Auto, parallel, named and streamed calls, as the bundle of this server writes them."""
    other = sdk(server)
    whole = other.chat.completions.create(model=MODEL, messages=user(ASK_BOTH), tools=TOOLS).choices[0]
    calls = [(call.function.name, call.function.arguments) for call in whole.message.tool_calls or []]
    assert [name for name, _ in calls] == ["get_weather", "get_time"] and whole.message.content is None
    streamed, finish = streamed_calls(other, ASK_BOTH)
    assert [(call["name"], call["arguments"]) for call in streamed] == calls and finish == "tool_calls"
    named: Any = {"type": "function", "function": {"name": "get_time"}}
    forced, _ = streamed_calls(other, "hello", tool_choice=named)
    assert [call["name"] for call in forced] == ["get_time"]
    assert set(json.loads(forced[0]["arguments"])) == {"city", "days"}
    said = other.chat.completions.create(model=MODEL, messages=user("say: done"), tools=TOOLS).choices[0]
    assert said.message.content == "done" and said.finish_reason == "stop"
    back: list[Any] = [*user(ASK_BOTH), whole.message]
    back += [{"role": "tool", "tool_call_id": call.id, "content": "fine"} for call in whole.message.tool_calls or []]
    final = other.chat.completions.create(model=MODEL, messages=back, tools=TOOLS).choices[0]
    assert final.message.content == "fine\nfine" and final.finish_reason == "stop"


@check
def tools_hermes_format() -> None:
    every_format("scripted")


@check
def tools_mistral_format() -> None:
    every_format("mistral")


@check
def tools_phi_format() -> None:
    every_format("phi")


@check
def tools_llama_format() -> None:
    every_format("llama")


@check
def tools_behind_reasoning() -> None:
    every_format("thinks")


@check
def tools_forced_on_the_model() -> None:
    answer = sdk("demo").chat.completions.create(
        model="demo",
        messages=user("Hello"),
        tools=[function("get_weather", True)],
        tool_choice="required",
        temperature=1.5,
        max_tokens=600,
        parallel_tool_calls=False,
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert set(json.loads(call.function.arguments)) == {"city", "days"}


@check
def parse() -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=user("Where?"), response_format=Trip, max_tokens=400)
    trip = answer.choices[0].message.parsed
    assert isinstance(trip, Trip) and trip.cities[0].kind in ("town", "village")


@check
def parse_every_shape() -> None:
    for text in ("Anything", 'say: {"shape": {"kind": "square", "side": 3, "colour": "green"}, "either": "x"'):
        answer = client.chat.completions.parse(
            model=MODEL, messages=user(text), response_format=Everything, max_tokens=600
        )
        assert isinstance(answer.choices[0].message.parsed, Everything)


@check
def parse_every_shape_in_a_call() -> None:
    tools: Any = [openai.pydantic_function_tool(Everything)]
    answer = client.chat.completions.parse(
        model=MODEL, messages=user("say: no"), tools=tools, tool_choice="required", max_tokens=600
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Everything)


@check
def parse_what_was_said() -> None:
    said = '{"cities": [{"name": "Oslo \\"x\\"", "kind": "town", "people": 7}], "note": null}'
    answer = client.chat.completions.parse(model=MODEL, messages=user(f"say: {said}"), response_format=Trip)
    assert answer.choices[0].message.parsed == Trip.model_validate_json(said)


@check
def parse_tools() -> None:
    tools: Any = [openai.pydantic_function_tool(GetWeather), openai.pydantic_function_tool(Trip)]
    answer = client.chat.completions.parse(
        model=MODEL, messages=user('call: GetWeather {"city": "Bern", "days": 2}'), tools=tools
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == GetWeather(city="Bern", days=2)


@check
def parse_stream() -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=user("Where?"), response_format=Trip, max_tokens=400
    ) as events:
        final = events.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Trip)


@check
def parse_on_the_model() -> None:
    answer = sdk("demo").chat.completions.parse(
        model="demo", messages=user("Hi"), response_format=Small, temperature=2, max_tokens=400, seed=1, n=2
    )
    assert all(isinstance(choice.message.parsed, Small) for choice in answer.choices)


@check
def parse_cut_is_an_error() -> None:
    try:
        client.chat.completions.parse(model=MODEL, messages=user("Where?"), response_format=Trip, max_tokens=3)
    except openai.LengthFinishReasonError as error:
        assert error.completion.choices[0].finish_reason == "length"
    else:
        raise AssertionError("LengthFinishReasonError was not raised")


@check
def json_object() -> None:
    choice = create("Say it in JSON", response_format={"type": "json_object"})
    assert isinstance(json.loads(choice.message.content), dict)


@check
def reasoning_content() -> None:
    answer = sdk("thinks").chat.completions.create(model=MODEL, messages=user("hello"))
    message: Any = answer.choices[0].message
    assert message.content == "hello" and "The user said something." in message.reasoning_content
    assert answer.usage and answer.usage.completion_tokens_details
    assert (answer.usage.completion_tokens_details.reasoning_tokens or 0) > 0


@check
def reasoning_streamed() -> None:
    thought = text = ""
    for chunk in sdk("thinks").chat.completions.create(model=MODEL, messages=user("hello"), stream=True):
        delta: Any = chunk.choices[0].delta
        thought += getattr(delta, "reasoning_content", None) or ""
        text += delta.content or ""
    assert text == "hello" and "The user said something." in thought


@check
def reasoning_off() -> None:
    off: Any = {"chat_template_kwargs": {"enable_thinking": False}}
    answer = sdk("thinks").chat.completions.create(model=MODEL, messages=user("hello"), extra_body=off)
    assert answer.choices[0].message.content == "hello"
    assert not getattr(answer.choices[0].message, "reasoning_content", None)


@check
def reasoning_then_parse() -> None:
    answer = sdk("thinks").chat.completions.parse(
        model=MODEL, messages=user("Where?"), response_format=Trip, max_tokens=400
    )
    assert isinstance(answer.choices[0].message.parsed, Trip)


@check
def responses() -> None:
    answer = client.responses.create(model=MODEL, input="Hello there", store=False)
    assert answer.output_text == "Hello there" and answer.status == "completed" and answer.error is None
    assert answer.usage is not None and answer.usage.total_tokens > 0


@check
def responses_items_and_instructions() -> None:
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "first"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "second"}]},
        {"role": "user", "content": "third"},
    ]
    answer = client.responses.create(model=MODEL, instructions="Be brief.", input=items, store=False)
    assert answer.output_text == "third" and answer.instructions == "Be brief."


@check
def responses_stream() -> None:
    with client.responses.stream(model=MODEL, input="one two three", store=False) as events:
        seen = list(events)
        final = events.get_final_response()
    kinds = [event.type for event in seen]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    deltas = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert deltas == final.output_text == "one two three"


@check
def responses_plain_stream() -> None:
    events = list(client.responses.create(model=MODEL, input="one two", stream=True, store=False))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"


@check
def responses_incomplete() -> None:
    answer = client.responses.create(model=MODEL, input="one two three four five six", max_output_tokens=2, store=False)
    assert answer.status == "incomplete" and answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


@check
def responses_parse() -> None:
    answer = client.responses.parse(model=MODEL, input="Where?", text_format=Trip, max_output_tokens=400, store=False)
    assert isinstance(answer.output_parsed, Trip)


@check
def responses_parse_stream() -> None:
    with client.responses.stream(
        model=MODEL, input="Where?", text_format=Trip, max_output_tokens=400, store=False
    ) as events:
        final = events.get_final_response()
    assert isinstance(final.output_parsed, Trip)


RESPONSE_TOOLS: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]


@check
def responses_tool_loop() -> None:
    items: list[Any] = [{"role": "user", "content": 'call: get_time {"city": "Oslo", "days": 2}'}]
    first = client.responses.create(model=MODEL, input=items, tools=RESPONSE_TOOLS, store=False)
    [call] = [item for item in first.output if item.type == "function_call"]
    assert call.name == "get_time" and json.loads(call.arguments) == {"city": "Oslo", "days": 2}
    items += first.output
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "ten o'clock"})
    second = client.responses.create(model=MODEL, input=items, tools=RESPONSE_TOOLS, store=False)
    assert second.output_text == "ten o'clock"


@check
def responses_tools_streamed() -> None:
    with client.responses.stream(
        model=MODEL, input=ASK_BOTH, tools=RESPONSE_TOOLS, store=False, tool_choice="auto"
    ) as events:
        seen = list(events)
        final = events.get_final_response()
    calls = [item for item in final.output if item.type == "function_call"]
    assert [call.name for call in calls] == ["get_weather", "get_time"]
    done = [event.arguments for event in seen if event.type == "response.function_call_arguments.done"]
    assert done == [call.arguments for call in calls]


@check
def responses_tool_choice() -> None:
    named: Any = {"type": "function", "name": "get_time"}
    for choice, name in (("required", "get_weather"), (named, "get_time")):
        answer = client.responses.create(
            model=MODEL, input="say: no", tools=RESPONSE_TOOLS, tool_choice=choice, store=False
        )
        calls = [item for item in answer.output if item.type == "function_call"]
        assert [call.name for call in calls] == [name]


@check
def responses_parse_tools() -> None:
    tools: Any = [openai.pydantic_function_tool(GetWeather)]
    flat: Any = [{"type": "function", **tool["function"]} for tool in tools]
    answer = client.responses.parse(
        model=MODEL, input='call: GetWeather {"city": "Bern", "days": 2}', tools=flat, store=False
    )
    [call] = [item for item in answer.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Bern", "days": 2}


@check
def responses_reasoning() -> None:
    thinks = sdk("thinks")
    answer = thinks.responses.create(model=MODEL, input="hello", store=False)
    assert [item.type for item in answer.output] == ["reasoning", "message"] and answer.output_text == "hello"
    assert answer.usage and answer.usage.output_tokens_details.reasoning_tokens > 0
    items: list[Any] = [{"role": "user", "content": "hello"}, *answer.output, {"role": "user", "content": "again"}]
    assert thinks.responses.create(model=MODEL, input=items, store=False).output_text == "again"


@check
def stored_responses_follow_each_other() -> None:
    stores = sdk("stored")
    first = stores.responses.create(
        model=MODEL, input="call: get_time {}", tools=RESPONSE_TOOLS, instructions="Be brief."
    )
    [call] = [item for item in first.output if item.type == "function_call"]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "ten o'clock"}
    second = stores.responses.create(
        model=MODEL, input=[result], tools=RESPONSE_TOOLS, previous_response_id=first.id, stream=False
    )
    assert second.output_text == "ten o'clock" and second.previous_response_id == first.id
    assert second.instructions is None
    assert stores.responses.retrieve(second.id).output_text == "ten o'clock"
    with stores.responses.stream(model=MODEL, input="and now?", previous_response_id=second.id) as events:
        assert events.get_final_response().output_text == "and now?"


@check
def stored_responses_list_their_items() -> None:
    stores = sdk("stored")
    first = stores.responses.create(model=MODEL, input=[{"role": "user", "content": word} for word in ("a", "b", "c")])
    second = stores.responses.create(model=MODEL, input="d", previous_response_id=first.id)
    for order in ("asc", "desc"):
        items: list[Any] = list(stores.responses.input_items.list(second.id, limit=2, order=order))
        texts = [item.content[0].text for item in items]
        assert texts == (["a", "b", "c", "c", "d"] if order == "asc" else ["d", "c", "c", "b", "a"])
    page = stores.responses.input_items.list(second.id, limit=2, order="asc")
    rest = stores.responses.input_items.list(second.id, after=page.data[-1].id, order="asc")
    assert [item.id for item in page.data + rest.data] == [item.id for item in reversed(items)]


@check
def stored_responses_are_deleted_and_not_found() -> None:
    stores = sdk("stored")
    made = stores.responses.create(model=MODEL, input="Hello")
    stores.responses.delete(made.id)
    for verb in (stores.responses.retrieve, stores.responses.delete, stores.responses.cancel):
        with raises(openai.NotFoundError):
            verb(made.id)
    with raises(openai.NotFoundError, code="previous_response_not_found", param="previous_response_id"):
        stores.responses.create(model=MODEL, input="more", previous_response_id=made.id)


@check
def stored_responses_in_the_background() -> None:
    stores = sdk("stored")
    made = stores.responses.create(model=MODEL, input="one two three", background=True)
    assert made.status in ("queued", "in_progress") and made.background
    while (made := stores.responses.retrieve(made.id)).status in ("queued", "in_progress"):
        pass
    assert made.status == "completed" and made.output_text == "one two three"
    assert stores.responses.cancel(made.id).status == "completed"


@check
def stored_responses_are_cancelled() -> None:
    stores = sdk("stored")
    made = stores.responses.create(model=MODEL, input="say: " + "word " * 3000, background=True)
    assert stores.responses.cancel(made.id).status == "cancelled"
    assert stores.responses.cancel(made.id).status == "cancelled"
    assert stores.responses.retrieve(made.id).status == "cancelled"


@check
def stored_streams_are_taken_up_again() -> None:
    stores = sdk("stored")
    with stores.responses.create(model=MODEL, input="one two three four", background=True, stream=True) as events:
        seen: list[Any] = [next(iter(events)) for _ in range(2)]  # then the connection breaks
    assert [event.type for event in seen] == ["response.created", "response.queued"]
    id = seen[0].response.id
    seen += stores.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    deltas = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert deltas == "one two three four" and seen[-1].type == "response.completed"
    again = list(stores.responses.retrieve(id, stream=True))
    assert [event.type for event in again] == [event.type for event in seen]


@check
def storing_is_refused_where_it_is_off() -> None:
    fields: Any
    for fields in ({"store": True}, {"background": True}, {"previous_response_id": "resp_1"}):
        with raises(openai.BadRequestError, param=next(iter(fields))):
            client.responses.create(model=MODEL, input="Hello", **fields)
    with raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


@check
def responses_custom_tools() -> None:
    tools: Any = [
        {"type": "custom", "name": "run_code", "description": "Runs Python."},
        {"type": "custom", "name": "pick", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-c]{3}"}},
    ]
    code = 'print("a\n")'
    directed = f"call: run_code {json.dumps({'input': code})}"
    with client.responses.stream(model=MODEL, input=directed, tools=tools, store=False) as events:
        seen = list(events)
        [call] = events.get_final_response().output
    assert call.type == "custom_tool_call" and (call.name, call.input) == ("run_code", code)
    assert [event.input for event in seen if event.type == "response.custom_tool_call_input.done"] == [code]
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "printed"}
    items: list[Any] = [{"role": "user", "content": directed}, call, result]
    assert client.responses.create(model=MODEL, input=items, tools=tools, store=False).output_text == "printed"
    picked = client.responses.create(
        model=MODEL, input="say: no", tools=tools, tool_choice={"type": "custom", "name": "pick"}, store=False
    )
    [choice] = picked.output
    assert choice.type == "custom_tool_call" and len(choice.input) == 3 and set(choice.input) <= set("abc")


@check
def responses_logprobs() -> None:
    answer = client.responses.create(
        model=MODEL, input="hi you", include=["message.output_text.logprobs"], top_logprobs=2, store=False
    )
    [item] = answer.output
    assert item.type == "message" and item.content[0].type == "output_text"
    entries = item.content[0].logprobs or []
    assert "".join(entry.token for entry in entries if not entry.token.startswith("<|")) == "hi you"
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


@check
def responses_are_not_kept() -> None:
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with raises(openai.NotFoundError, status_code=404):
            ask("resp_1")


@check
def responses_refuse_what_needs_storage() -> None:
    with raises(openai.BadRequestError, param="previous_response_id"):
        client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")


@check
def completions_every_prompt_form() -> None:
    ids = [20, 21, 22]
    for prompt, answers in (("Hello", 1), (["Hello", "you"], 2), (ids, 1), ([ids, ids[:2]], 2)):
        answer = client.completions.create(model=MODEL, prompt=prompt)  # type: ignore[arg-type]
        assert [choice.text for choice in answer.choices] == [" ok"] * answers
        assert [choice.index for choice in answer.choices] == list(range(answers))
        assert answer.object == "text_completion"


@check
def completions_n_and_echo() -> None:
    answer = client.completions.create(model=MODEL, prompt=["A", "B"], n=2, best_of=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["A ok", "A ok", "B ok", "B ok"]


@check
def completions_logprobs_of_the_prompt() -> None:
    ids = [20, 21, 22, 23]
    answer = client.completions.create(model=MODEL, prompt=ids, max_tokens=1, logprobs=2, echo=True, temperature=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs and logprobs.token_logprobs and logprobs.tokens and logprobs.text_offset
    assert len(logprobs.token_logprobs) == len(logprobs.tokens) == len(logprobs.text_offset) == 5
    assert logprobs.token_logprobs[0] is None


@check
def completions_stream() -> None:
    chunks = list(client.completions.create(model=MODEL, prompt="Hello", stream=True))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == " ok"
    assert chunks[-1].choices[0].finish_reason == "stop"


@check
def completions_suffix_is_refused() -> None:
    with raises(openai.BadRequestError, param="suffix"):
        client.completions.create(model=MODEL, prompt="a", suffix="b")


@check
def models() -> None:
    listed = client.models.list()
    [model] = listed.data
    assert model.id == MODEL and model.object == "model" and client.models.retrieve(MODEL).id == MODEL
    assert [one.id for one in client.models.list()] == [MODEL]


@check
def models_unknown() -> None:
    with raises(openai.NotFoundError, code="model_not_found"):
        client.models.retrieve("no/such")


@check
def error_400() -> None:
    with raises(openai.BadRequestError, status_code=400, param="temperature", code="decimal_above_max_value"):
        create("hi", temperature=3)
    with raises(openai.BadRequestError, param="messages[0].role"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "nobody", "content": "x"}])  # type: ignore
    with raises(openai.BadRequestError, code="context_length_exceeded", param="messages"):
        create("word " * 40_000)


@check
def error_400_of_a_stream() -> None:
    with raises(openai.BadRequestError, status_code=400):
        create("hi", stream=True, top_logprobs=2)


@check
def error_400_of_a_grammar() -> None:
    with raises(openai.BadRequestError, status_code=400):
        create("hi", extra_body={"guided_regex": "("})


@check
def error_400_names_the_field() -> None:
    picture: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]
    with raises(openai.BadRequestError, param="messages[0].content[0].type", code="unsupported_value"):
        client.chat.completions.create(model=MODEL, messages=picture)
    with raises(openai.BadRequestError, param="no_such_field"):
        create("hi", extra_body={"no_such_field": 1})
    with raises(openai.BadRequestError, param="tools"):
        create(
            "hi",
            tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}],
            tool_choice="required",
        )


@check
def error_504() -> None:
    with raises(openai.InternalServerError, status_code=504, code="timeout"):
        sdk("brief").chat.completions.create(model=MODEL, messages=user("hi"), **LONG)


@check
def error_401() -> None:
    with raises(openai.AuthenticationError, status_code=401, code="invalid_api_key"):
        client.with_options(api_key="sk-wrong").models.list()


@check
def error_404_of_a_model() -> None:
    with raises(openai.NotFoundError, status_code=404, code="model_not_found", param="model"):
        client.chat.completions.create(model="other", messages=user("hi"))


@check
def error_404_of_a_route() -> None:
    with raises(openai.NotFoundError, status_code=404):
        client.moderations.create(model=MODEL, input="hi")


@check
def error_405() -> None:
    with raises(openai.APIStatusError, status_code=405):
        client.get("/chat/completions", cast_to=object)


@check
def error_413() -> None:
    with raises(openai.APIStatusError, status_code=413):
        create("x" * 9_000_000)


@check
def error_429() -> None:
    limited = sdk("limited")
    with suppress(openai.RateLimitError):  # another client may have been here within the minute
        limited.chat.completions.create(model=MODEL, messages=user("hi"))
    try:
        limited.chat.completions.create(model=MODEL, messages=user("hi"))
    except openai.RateLimitError as error:
        assert error.code == "rate_limit_exceeded" and float(error.response.headers["retry-after"]) > 0
        assert error.response.headers["x-ratelimit-limit-requests"] == "1" and error.request_id
    else:
        raise AssertionError("RateLimitError was not raised")


@check
def error_503() -> None:
    full = sdk("full")
    with full.chat.completions.create(model=MODEL, messages=user("hi"), stream=True, **LONG) as chunks:
        next(iter(chunks))
        with raises(openai.InternalServerError, status_code=503):
            full.chat.completions.create(model=MODEL, messages=user("hi"))


@check
def retries_after_503() -> None:
    full = sdk("full", max_retries=5)  # the stream of the check before may still be ending
    held = full.chat.completions.create(model=MODEL, messages=user("hi"), stream=True, **LONG)
    next(iter(held))
    threading.Timer(0.5, held.close).start()
    answer = sdk("full", max_retries=5).chat.completions.create(model=MODEL, messages=user("again"))
    assert answer.choices[0].message.content == "again"


@check
def timeout() -> None:
    try:
        sdk("demo", timeout=0.3).chat.completions.create(
            model="demo", messages=user("Tell me a story."), max_tokens=1900, extra_body=ENDLESS
        )
    except openai.APITimeoutError:
        return
    raise AssertionError("APITimeoutError was not raised")


@check
async def async_sixteen_at_once() -> None:
    async with AsyncOpenAI(max_retries=0, timeout=PATIENCE_S) as many:

        async def ask(number: int) -> str:
            if number % 2:
                answer = await many.chat.completions.create(model=MODEL, messages=user(f"number {number}"))
                return answer.choices[0].message.content or ""
            parts = await many.chat.completions.create(model=MODEL, messages=user(f"number {number}"), stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in parts])

        found = await asyncio.gather(*(ask(number) for number in range(16)))
    assert found == [f"number {number}" for number in range(16)]


@check
async def async_thirty_two_of_every_kind() -> None:
    async with AsyncOpenAI(max_retries=0, timeout=PATIENCE_S) as many:

        async def ask(number: int) -> None:
            text = f"number {number}"
            body: Any = {"model": MODEL, "messages": user(text), "max_tokens": 600}
            match number % 4:
                case 0:
                    parsed = await many.chat.completions.parse(**body, response_format=Everything, temperature=2)
                    assert isinstance(parsed.choices[0].message.parsed, Everything)
                case 1:
                    called = await many.chat.completions.create(**body, tools=TOOLS, tool_choice="required", n=2)
                    assert all(len(choice.message.tool_calls or []) >= 1 for choice in called.choices)
                case 2:
                    parts = await many.chat.completions.create(**body, stream=True, logprobs=True, top_logprobs=5)
                    assert "".join([chunk.choices[0].delta.content or "" async for chunk in parts]) == text
                case 3:
                    chosen = await many.chat.completions.create(**body, extra_body={"guided_regex": f"<{number}>"})
                    assert chosen.choices[0].message.content == f"<{number}>"

        await asyncio.gather(*(ask(number) for number in range(32)))


@check
async def async_responses_and_parse() -> None:
    async with AsyncOpenAI(max_retries=0, timeout=PATIENCE_S) as many:
        said, parsed = await asyncio.gather(
            many.responses.create(model=MODEL, input="hi", store=False),
            many.chat.completions.parse(model=MODEL, messages=user("x"), response_format=Trip, max_tokens=400),
        )
    assert said.output_text == "hi" and isinstance(parsed.choices[0].message.parsed, Trip)


@check
async def async_cancelled_task() -> None:
    async with AsyncOpenAI(base_url=base_url("demo"), max_retries=0, timeout=PATIENCE_S) as many:
        body: Any = {"model": "demo", "messages": user("Tell me a story."), "max_tokens": 1900}
        task = asyncio.create_task(many.chat.completions.create(**body, extra_body=ENDLESS))
        stream = await many.chat.completions.create(**body, extra_body=ENDLESS, stream=True)
        await anext(aiter(stream))
        task.cancel()
        await stream.close()
        after = await many.chat.completions.create(model="demo", messages=user("Hello"), max_tokens=4)
    assert after.choices


def embedder() -> OpenAI:
    """A client of the server that embeds."""
    return OpenAI(base_url=base_url("embeds"), max_retries=0, timeout=PATIENCE_S)


def length(vector: list[float]) -> float:
    """Of a vector."""
    return sum(number * number for number in vector) ** 0.5


@check
def embeddings() -> None:
    """The client asks for base64 unless told otherwise, and decodes it; both must be the same numbers."""
    texts = ["The capital of China is Beijing.", "gravity", "The capital of China is Beijing."]
    found = embedder().embeddings.create(model="embedder", input=texts)
    plain = embedder().embeddings.create(model="embedder", input=texts, encoding_format="float", user="me")
    assert [entry.index for entry in found.data] == [0, 1, 2] and found.model == "embedder"
    assert all(abs(length(entry.embedding) - 1) < 1e-5 for entry in found.data)
    first, other, again = (entry.embedding for entry in found.data)
    for near in (again, plain.data[0].embedding):
        assert len(near) == len(first) == 64
        assert max(abs(a - b) for a, b in zip(first, near, strict=True)) < 1e-5
    assert sum(a * b for a, b in zip(first, other, strict=True)) < 0.99
    assert found.usage.prompt_tokens == found.usage.total_tokens > 10


@check
def embeddings_of_fewer_dimensions() -> None:
    [whole] = embedder().embeddings.create(model="embedder", input="gravity").data
    [cut] = embedder().embeddings.create(model="embedder", input="gravity", dimensions=16).data
    scale = length(whole.embedding[:16])
    assert len(cut.embedding) == 16
    assert max(abs(a - b / scale) for a, b in zip(cut.embedding, whole.embedding, strict=False)) < 1e-5


@check
def embeddings_of_tokens_and_of_many() -> None:
    one = embedder().embeddings.create(model="embedder", input=[5, 6, 7])
    two = embedder().embeddings.create(model="embedder", input=[[5, 6, 7], [8]])
    assert one.usage.prompt_tokens == 3 and two.usage.prompt_tokens == 4
    near = zip(one.data[0].embedding, two.data[0].embedding, strict=True)
    assert max(abs(a - b) for a, b in near) < 1e-5
    many = embedder().embeddings.create(model="embedder", input=[f"text {number}" for number in range(600)])
    assert [entry.index for entry in many.data] == list(range(600))


@check
def embeddings_that_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"input": ["fine", "far too long " * 300]},
        {"input": "fine", "dimensions": 65},
        {"input": []},
    ]
    named = []
    for given in wrong:
        try:
            embedder().embeddings.create(model="embedder", **given)
        except openai.BadRequestError as error:
            named.append(error.param)
    assert named == ["input[1]", "dimensions", "input"], named
    for call in (
        lambda: embedder().chat.completions.create(model="embedder", messages=user("hi")),
        lambda: client.embeddings.create(model=MODEL, input="hi"),
    ):
        try:
            call()
        except openai.BadRequestError as error:
            assert error.code == "model_not_supported"
            continue
        raise AssertionError("not refused")


@check
async def async_embeddings_and_one_that_leaves() -> None:
    async with AsyncOpenAI(base_url=base_url("embeds"), max_retries=0, timeout=PATIENCE_S) as many:
        bulk = ["a text that is thrown away " * 20] * 2000
        leaving = asyncio.create_task(many.embeddings.create(model="embedder", input=bulk))
        answers = await asyncio.gather(*(many.embeddings.create(model="embedder", input=f"{n}") for n in range(8)))
        leaving.cancel()
        after = await many.embeddings.create(model="embedder", input="after")
    assert all(len(answer.data) == 1 for answer in (*answers, after))


if __name__ == "__main__":
    run()
