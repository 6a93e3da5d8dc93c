"""litellm judges: its own parameter mapping, stream assembly, tool and error classes, over the `openai/` provider."""

# servers: demo limited thinks

import json
import os
from typing import Any

# Before litellm is imported: its price list and its tokenizer must not come from a network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from checking import MODEL, base_url, check, run
from pydantic import BaseModel

litellm.telemetry = False
CHAT = f"openai/{MODEL}"
DEMO_TEXT = "text-completion-openai/demo"
MESSAGES = [{"role": "user", "content": "Hello there"}]
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "maximum": 99}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "forecast", "description": "Weather", "parameters": PLACE}}]
WEATHER: Any = [{"role": "user", "content": "What is the forecast for Paris in 3 days?"}]


class Pet(BaseModel):
    """What an answer is parsed into."""

    name: str
    age: int


def ask(**given: Any) -> Any:
    """A chat completion; what litellm would drop silently is an error."""
    return litellm.completion(**{"model": CHAT, "messages": MESSAGES, "num_retries": 0, "drop_params": False, **given})


@check
def completion() -> None:
    answer = ask(temperature=0, max_tokens=50, seed=1, user="someone")
    assert answer.choices[0].message.content == "Hello there"
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.prompt_tokens > 0 and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0
    assert answer.model.endswith(MODEL) and answer.id.startswith("chatcmpl")


@check
async def acompletion() -> None:
    answer = await litellm.acompletion(model=CHAT, messages=MESSAGES, max_completion_tokens=50)
    assert answer.choices[0].message.content == "Hello there"
    pieces = [
        chunk.choices[0].delta.content or ""
        async for chunk in await litellm.acompletion(model=CHAT, messages=MESSAGES, stream=True)
    ]
    assert "".join(pieces) == "Hello there"


@check
def stream() -> None:
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert len({chunk.id for chunk in chunks}) == 1
    whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    plain = ask()
    assert whole.choices[0].message.content == plain.choices[0].message.content == "Hello there"
    assert whole.choices[0].finish_reason == "stop"
    counted = (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert counted == (plain.usage.prompt_tokens, plain.usage.completion_tokens)


@check
def several_choices() -> None:
    answer = ask(n=3, temperature=1.0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {"Hello there"}


@check
def stop_sequences() -> None:
    assert ask(stop=["there"]).choices[0].message.content == "Hello "
    assert ask(max_tokens=1).choices[0].finish_reason == "length"


@check
def logprobs() -> None:
    answer = ask(logprobs=True, top_logprobs=2)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert text.startswith("Hello there")
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)


@check
def tools_and_their_results() -> None:
    first = ask(messages=WEATHER, tools=TOOLS, tool_choice="auto")
    assert first.choices[0].finish_reason == "tool_calls"
    message = first.choices[0].message
    [call] = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("forecast", {"city": "Paris", "days": 3})
    result = {"role": "tool", "tool_call_id": call.id, "name": "forecast", "content": "rain"}
    second = ask(messages=[*WEATHER, message, result], tools=TOOLS)
    assert second.choices[0].message.content == "rain" and second.choices[0].finish_reason == "stop"


@check
def history_in_every_shape() -> None:
    """Answers go back as objects and as dictionaries with every null, whole and streamed, of a model that thinks."""
    for server in ("scripted", "thinks"):
        for streams in (False, True):
            first = ask(api_base=base_url(server), messages=WEATHER, tools=TOOLS, stream=streams)
            answer = litellm.stream_chunk_builder(list(first)) if streams else first
            message = answer.choices[0].message
            result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
            for shape in (message, message.model_dump()):
                history = [*WEATHER, shape, result]
                again = ask(api_base=base_url(server), messages=history, tools=TOOLS).choices[0].message
                part = {"type": "text", "text": "say: fine", "cache_control": {"type": "ephemeral"}}
                history += [again.model_dump(), {"role": "user", "content": [part]}]
                last = ask(api_base=base_url(server), messages=history, tools=TOOLS).choices[0].message
                assert (again.content, last.content) == ("rain", "fine")


@check
def tools_streamed() -> None:
    forced = {"type": "function", "function": {"name": "forecast"}}
    for choice in ("auto", "required", forced):
        chunks = list(ask(messages=WEATHER, tools=TOOLS, tool_choice=choice, stream=True))
        whole = litellm.stream_chunk_builder(chunks, messages=WEATHER)
        [call] = whole.choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Paris", "days": 3}
        assert whole.choices[0].finish_reason == "tool_calls"


@check
def parallel_tools() -> None:
    calls = ['call: forecast {"city": "Oslo", "days": 1}', 'call: forecast {"city": "Rome", "days": 2}']
    two: Any = [{"role": "user", "content": "\n".join(calls)}]
    found = ask(messages=two, tools=TOOLS).choices[0].message.tool_calls
    assert [json.loads(call.function.arguments)["city"] for call in found] == ["Oslo", "Rome"]
    assert len({call.id for call in found}) == 2
    assert len(ask(messages=two, tools=TOOLS, parallel_tool_calls=False).choices[0].message.tool_calls) == 1


@check
def response_format_json_object() -> None:
    asked: Any = [{"role": "user", "content": "JSON with the keys 'name' and 'age'"}]
    content = ask(messages=asked, response_format={"type": "json_object"}).choices[0].message.content
    assert set(json.loads(content)) == {"name", "age"}


@check
def response_format_class() -> None:
    asked: Any = [{"role": "user", "content": 'say: {"name": "Tom", "age": 7}'}]
    litellm.enable_json_schema_validation = True
    try:
        for streams in (False, True):
            answer = ask(messages=asked, response_format=Pet, stream=streams)
            whole = litellm.stream_chunk_builder(list(answer)) if streams else answer
            assert Pet.model_validate_json(whole.choices[0].message.content) == Pet(name="Tom", age=7)
    finally:
        litellm.enable_json_schema_validation = False


@check
def response_format_schema_at_any_temperature() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": PLACE}}
    for seed in range(4):
        answer = ask(
            api_base=base_url("demo"),
            model="openai/demo",
            response_format=form,
            temperature=1.5,
            seed=seed,
            max_tokens=400,
        )
        assert set(json.loads(answer.choices[0].message.content)) == {"city", "days"}


@check
def reasoning_content() -> None:
    answer = ask(api_base=base_url("thinks"), reasoning_effort="low", allowed_openai_params=["reasoning_effort"])
    assert answer.choices[0].message.content == "Hello there"
    assert answer.choices[0].message.reasoning_content
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    chunks = list(ask(api_base=base_url("thinks"), stream=True))
    whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert whole.choices[0].message.reasoning_content == answer.choices[0].message.reasoning_content


@check
def extra_body() -> None:
    answer = ask(extra_body={"guided_choice": ["yes", "no"], "top_k": 5, "min_p": 0.0})
    assert answer.choices[0].message.content in ("yes", "no")


@check
def text_completion() -> None:
    given: Any = {"model": DEMO_TEXT, "api_base": base_url("demo"), "max_tokens": 8, "temperature": 0}
    answer = litellm.text_completion(**given, prompt="Once upon a time")
    assert answer.choices[0].text and answer.object == "text_completion"
    pieces = litellm.text_completion(**given, prompt="Once upon a time", stream=True)
    assert "".join(piece.choices[0].text or "" for piece in pieces) == answer.choices[0].text


@check
def text_completion_with_echo_and_logprobs() -> None:
    answer = litellm.text_completion(
        model=DEMO_TEXT,
        api_base=base_url("demo"),
        prompt=["Once upon a time", "The cat"],
        max_tokens=2,
        echo=True,
        logprobs=1,
        temperature=0,
    )
    starts = zip(answer.choices, ("Once upon a time", "The cat"), strict=True)
    assert all(choice.text.startswith(start) for choice, start in starts)
    found = answer.choices[0].logprobs
    assert found.token_logprobs[0] is None and all(value <= 0 for value in found.token_logprobs[1:])


@check
async def responses_route() -> None:
    answer = await litellm.aresponses(model=CHAT, input="Hello there", max_output_tokens=50, store=False)
    [message] = [item for item in answer.output if item.type == "message"]
    assert message.content[0].text == "Hello there"
    events = [event async for event in await litellm.aresponses(model=CHAT, input="Hello there", stream=True)]
    names = [event.type for event in events]
    assert names[0] == "response.created" and names[-1] == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello there"


@check
def errors_have_classes() -> None:
    expected: Any = [
        (litellm.ContextWindowExceededError, {"messages": [{"role": "user", "content": "word " * 40_000}]}),
        (litellm.BadRequestError, {"temperature": 7}),
        (litellm.NotFoundError, {"model": "openai/nobody"}),
        (litellm.AuthenticationError, {"api_key": "wrong"}),
    ]
    for kind, given in expected:
        try:
            ask(**given)
        except kind:
            continue
        raise AssertionError(f"no {kind.__name__} for {list(given)}")


@check
def rate_limits_have_a_class() -> None:
    found = []
    for _ in range(3):
        try:
            ask(api_base=base_url("limited"), max_retries=0)
        except litellm.RateLimitError as limited:
            found.append(limited)
    assert found and int(found[0].litellm_response_headers["retry-after"]) > 0


@check
def fallbacks_and_router() -> None:
    models = [
        {"model_name": "chat", "litellm_params": {"model": "openai/nobody"}},
        {"model_name": "spare", "litellm_params": {"model": CHAT}},
    ]
    router = litellm.Router(model_list=models, fallbacks=[{"chat": ["spare"]}], num_retries=0)
    assert router.completion(model="chat", messages=MESSAGES).choices[0].message.content == "Hello there"


@check
def models_listed() -> None:
    assert MODEL in litellm.get_valid_models(
        check_provider_endpoint=True, custom_llm_provider="openai", api_base=os.environ["OPENAI_BASE_URL"]
    )


@check
def ollama_format() -> None:
    """The provider `ollama_chat/`, which sends bodies without a type; whole, streamed, tools, a schema, an error."""
    over: Any = {"model": f"ollama_chat/{MODEL}", "api_base": base_url("scripted").removesuffix("/v1")}
    over |= {"api_key": os.environ["OPENAI_API_KEY"]}
    answer = ask(**over, temperature=0, max_tokens=50)
    assert answer.choices[0].message.content == "Hello there" and answer.usage.prompt_tokens > 0
    chunks = list(ask(**over, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there"
    message = ask(**over, messages=WEATHER, tools=TOOLS).choices[0].message
    [call] = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("forecast", {"city": "Paris", "days": 3})
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    assert ask(**over, messages=[*WEATHER, message, result], tools=TOOLS).choices[0].message.content == "rain"
    said = [{"role": "user", "content": 'say: {"name": "Rex", "age": 3}'}]
    parsed = Pet.model_validate_json(ask(**over, messages=said, response_format=Pet).choices[0].message.content)
    assert parsed == Pet(name="Rex", age=3)
    try:
        ask(**over | {"model": "ollama_chat/nobody"})
    except litellm.NotFoundError:
        return
    raise AssertionError("the unknown model was not refused")


if __name__ == "__main__":
    run()
