"""pydantic-ai judges: agents over both of its OpenAI models, tools, every mode of output, streams, refused answers."""

# servers: demo limited thinks

from collections.abc import Iterator
from typing import Any

from checking import MODEL, base_url, check, run
from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRetry, NativeOutput, PromptedOutput, RunContext, ToolOutput, UnexpectedModelBehavior
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import (
    ModelAuthenticationError,
    ModelContextWindowExceededError,
    ModelNotFoundError,
    ModelRateLimitError,
    ModelRequestRejectedError,
)
from pydantic_ai.messages import ImageUrl, ModelRequest, ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

BOTH = (OpenAIChatModel, OpenAIResponsesModel)
SAYS_PARIS = 'say: {"city": "Paris", "days": 3}'
ASKS_PARIS = "A trip to Paris for 3 days"


class Trip(BaseModel):
    """A trip to a city."""

    city: str = Field(max_length=30)
    days: int = Field(ge=1, le=60)


class Idle(BaseModel):
    """No trip at all."""

    why: str = Field(max_length=30)


PARIS = Trip(city="Paris", days=3)


def model(kind: Any, server: str = "scripted", name: str = MODEL, **given: Any) -> Any:
    """A model of pydantic-ai around an SDK that does not retry."""
    sdk = AsyncOpenAI(base_url=base_url(server), max_retries=0, **given)
    return kind(name, provider=OpenAIProvider(openai_client=sdk))


def both(**given: Any) -> Iterator[Any]:
    """An agent over each of the two models."""
    for kind in BOTH:
        yield Agent(model(kind), **given)


async def text_streamed(agent: Any, prompt: str) -> list[str]:
    """The growing text of a streamed run."""
    async with agent.run_stream(prompt) as stream:
        return [text async for text in stream.stream_text(debounce_by=None)]


@check
async def text() -> None:
    for agent in both(instructions="Be brief."):
        answer = await agent.run("Hello there")
        assert answer.output == "Hello there"
        usage = answer.usage
        assert usage.input_tokens > 0 and usage.output_tokens > 0 and usage.requests == 1
        more = await agent.run("And now", message_history=answer.all_messages())
        assert more.output == "And now"
        assert more.usage.input_tokens > usage.input_tokens


@check
async def text_of_a_stream() -> None:
    for agent in both():
        seen = await text_streamed(agent, "Hello there, how are you?")
        assert seen[-1] == "Hello there, how are you?" and len(seen) > 1
        assert all(seen[-1].startswith(part) for part in seen)


@check
async def settings() -> None:
    for agent in both():
        settings: Any = {"temperature": 0.3, "top_p": 0.9, "max_tokens": 100, "seed": 3, "presence_penalty": 0.1}
        settings |= {"frequency_penalty": 0.1, "parallel_tool_calls": False}
        answer = await agent.run("Hello there", model_settings=settings)
        assert answer.output == "Hello there"
    chat = await Agent(model(OpenAIChatModel)).run(
        "Hello there", model_settings={"openai_logprobs": True, "openai_top_logprobs": 2, "stop_sequences": ["there"]}
    )
    assert chat.output == "Hello "
    details = chat.all_messages()[-1].provider_details
    assert details and len(details["logprobs"]) == chat.usage.output_tokens


@check
async def tools() -> None:
    asked: list[Any] = []
    for agent in both():
        asked.clear()

        @agent.tool_plain
        def forecast(city: str, days: int) -> str:
            """Weather of a city."""
            asked.append((city, days))
            return f"rain in {city}"

        answer = await agent.run('call: forecast {"city": "Paris", "days": 3}')
        assert answer.output == "rain in Paris"
        assert asked == [("Paris", 3)] and answer.usage.requests == 2 and answer.usage.tool_calls == 1
        parts = [part for message in answer.all_messages() for part in message.parts]
        assert [type(part) for part in parts if isinstance(part, ToolCallPart | ToolReturnPart)] == [
            ToolCallPart,
            ToolReturnPart,
        ]


@check
async def tools_in_a_stream() -> None:
    for agent in both():

        @agent.tool
        def forecast(_: RunContext[None], city: str) -> str:
            """Weather of a city."""
            return f"rain in {city}"

        seen = await text_streamed(agent, 'call: forecast {"city": "Oslo"}\ncall: forecast {"city": "Rome"}')
        assert seen[-1] == "rain in Oslo\nrain in Rome"


@check
async def a_tool_that_wants_another_try() -> None:
    for agent in both():

        @agent.tool_plain(retries=2)
        def forecast(city: str) -> str:
            """Weather of a city."""
            if city != "Oslo":
                raise ModelRetry("say Oslo")
            return "snow"

        answer = await agent.run('call: forecast {"city": "Rome"}\nthen\ncall: forecast {"city": "Oslo"}\nthen')
        assert answer.output.endswith("snow") and answer.usage.requests == 3


@check
async def output_by_tool() -> None:
    for agent in both(output_type=ToolOutput(Trip)):
        answer = await agent.run(ASKS_PARIS)
        assert answer.output == PARIS and answer.usage.requests == 1


@check
async def output_by_one_of_several_tools() -> None:
    for agent in both(output_type=[Trip, Idle]):
        answer = await agent.run('call: final_result_Idle {"why": "rain"}')
        assert answer.output == Idle(why="rain")


@check
async def output_native() -> None:
    for agent in both(output_type=NativeOutput(Trip)):
        answer = await agent.run(SAYS_PARIS)
        assert answer.output == PARIS and answer.usage.requests == 1
    for agent in both(output_type=NativeOutput([Trip, Idle])):
        wrapped = '{"result": {"kind": "Idle", "data": {"why": "rain"}}}'
        assert (await agent.run(f"say: {wrapped}")).output == Idle(why="rain")


@check
async def output_prompted() -> None:
    for agent in both(output_type=PromptedOutput(Trip)):
        answer = await agent.run(SAYS_PARIS)
        assert answer.output == PARIS and answer.usage.requests == 1


@check
async def output_behind_a_tool() -> None:
    for agent in both(output_type=ToolOutput(Trip, name="trip")):

        @agent.tool_plain
        def nearest() -> str:
            """The nearest city."""
            return "Rome"

        ask = 'call: nearest {}\nthen\ncall: trip {"city": "Rome", "days": 2}'
        answer = await agent.run(ask)
        assert answer.output == Trip(city="Rome", days=2) and answer.usage.requests == 2


@check
async def outputs_of_a_stream() -> None:
    for wanted, ask in (
        (ToolOutput(Trip), ASKS_PARIS),
        (NativeOutput(Trip), SAYS_PARIS),
        (PromptedOutput(Trip), SAYS_PARIS),
    ):
        for agent in both(output_type=wanted):
            async with agent.run_stream(ask) as stream:
                seen = [part async for part in stream.stream_output(debounce_by=None)]
                final = await stream.get_output()
            assert seen[-1] == final == PARIS


@check
async def an_output_that_is_refused() -> None:
    for agent in both(output_type=Trip, retries=2):

        @agent.output_validator
        def not_rome(trip: Trip) -> Trip:
            if trip.city == "Rome":
                raise ModelRetry("not Rome")
            return trip

        ask = 'call: final_result {"city": "Rome", "days": 2}\nthen\ncall: final_result {"city": "Oslo", "days": 2}'
        answer = await agent.run(ask)
        assert answer.output == Trip(city="Oslo", days=2) and answer.usage.requests == 2


@check
async def thoughts() -> None:
    for kind in BOTH:
        agent = Agent(model(kind, "thinks"))
        answer = await agent.run("Hello there")
        assert answer.output == "Hello there"
        [thought] = [part for part in answer.all_messages()[-1].parts if isinstance(part, ThinkingPart)]
        details = thought.provider_details or {}
        assert "said something" in (thought.content or "".join(details.get("raw_content", [])))
        assert answer.usage.details["reasoning_tokens"] > 0
        again = await agent.run("And now", message_history=answer.all_messages())
        assert again.output == "And now"
        assert (await text_streamed(agent, "Hello there"))[-1] == "Hello there"


@check
async def any_model_at_any_temperature() -> None:
    """The embedded model knows nothing of trips: the forms alone make its answers valid."""
    for kind in BOTH:
        for wanted in (ToolOutput(Trip, strict=True), NativeOutput(Trip, strict=True)):
            agent: Any = Agent(model(kind, "demo", "demo"), output_type=wanted, retries=0)
            for seed, temperature in enumerate((0.0, 2.0)):
                settings: Any = {"temperature": temperature, "max_tokens": 600}
                if kind is OpenAIChatModel:
                    settings["seed"] = seed
                assert isinstance((await agent.run(ASKS_PARIS, model_settings=settings)).output, Trip)


@check
async def errors_have_classes() -> None:
    for kind in BOTH:
        for found, given, prompt in (
            (ModelContextWindowExceededError, {}, "word " * 40_000),
            (ModelNotFoundError, {"name": "nobody"}, "Hello"),
            (ModelAuthenticationError, {"api_key": "wrong"}, "Hello"),
            (ModelRequestRejectedError, {}, [ImageUrl("http://localhost/cat.png")]),
        ):
            try:
                await Agent(model(kind, **given)).run(prompt)
            except found:
                continue
            raise AssertionError((kind, found))


@check
async def rate_limits_have_a_class() -> None:
    for _ in range(3):
        try:
            await Agent(model(OpenAIChatModel, "limited")).run("Hello")
        except ModelRateLimitError:
            return
    raise AssertionError("never limited")


@check
async def thinking_on_and_off() -> None:
    for kind in BOTH:
        off = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
        for settings, thinks in (({"openai_reasoning_effort": "low"}, True), (off, False)):
            given: Any = {"model_settings": settings}
            answer = await Agent(model(kind, "thinks")).run("Hello there", **given)
            found = any(isinstance(part, ThinkingPart) for part in answer.all_messages()[-1].parts)
            assert (answer.output, found) == ("Hello there", thinks), (kind, settings)


@check
async def direct_requests_with_tool_choices() -> None:
    shown = [
        ToolDefinition(name=name, parameters_json_schema={"type": "object", "properties": {}, "required": []})
        for name in ("first", "second")
    ]
    for kind in BOTH:
        for choice, expected in (("required", ["first"]), (["second"], ["second"]), ("none", []), ("auto", ["first"])):
            answer = await model_request(
                model(kind),
                [ModelRequest.user_text_prompt("Do it")],
                model_settings={"tool_choice": choice},
                model_request_parameters=ModelRequestParameters(function_tools=shown),
            )
            called = [part.tool_name for part in answer.parts if isinstance(part, ToolCallPart)]
            assert called == expected, (kind, choice, answer.parts)


@check
async def events_of_a_run() -> None:
    for agent in both():

        @agent.tool_plain
        def forecast(city: str) -> str:
            """Weather of a city."""
            return f"rain in {city}"

        async with agent.run_stream_events('call: forecast {"city": "Oslo"}') as events:
            seen = [event async for event in events]
        kinds = [event.event_kind for event in seen]
        assert kinds[-1] == "agent_run_result" and seen[-1].result.output == "rain in Oslo"
        assert kinds.count("function_tool_call") == kinds.count("function_tool_result") == 1
        assert {"part_start", "part_delta", "part_end", "final_result"} <= set(kinds)


@check
async def a_cut_answer_is_an_error() -> None:
    for kind in BOTH:
        try:
            await Agent(model(kind), output_type=Trip).run(ASKS_PARIS, model_settings={"max_tokens": 6})
        except UnexpectedModelBehavior as cut:
            assert "token limit" in str(cut)
            continue
        raise AssertionError(kind)


if __name__ == "__main__":
    run()
