"""The OpenAI Agents SDK judges: loops of tools, typed answers, handoffs and sessions over responses and over chat."""

# servers: thinks stored

from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from checking import MODEL, base_url, check, run
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
STEPS = 'call: add {"a": 2, "b": 3}\nthen\ncall: add {"a": 5, "b": 5}\nthen\nsay: the sum is 10'
KINDS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}


class Trip(BaseModel):
    """A typed answer."""

    city: str
    days: int


def model(kind: str, server: str = "scripted") -> Any:
    """A model of the SDK over one of the two routes."""
    return KINDS[kind](model=MODEL, openai_client=AsyncOpenAI(base_url=base_url(server), max_retries=0, timeout=120))


def agent(kind: str, called: list[tuple[int, int]] | None = None, **options: Any) -> Agent[Any]:
    """An agent, with a tool when there is a list for its calls."""

    @function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        assert called is not None
        called.append((a, b))
        return a + b

    tools = [] if called is None else [add]
    return Agent(**{"name": "one", "instructions": "Be brief.", "model": model(kind), "tools": tools} | options)


async def loop(kind: str) -> None:
    """Tools are called until the answer."""
    called: list[tuple[int, int]] = []
    result = await Runner.run(agent(kind, called), STEPS)
    assert called == [(2, 3), (5, 5)] and result.final_output == "the sum is 10"
    usage = result.context_wrapper.usage
    assert usage.requests == 3 and usage.total_tokens == usage.input_tokens + usage.output_tokens > 0


async def streamed(kind: str) -> None:
    """The same, with events."""
    called: list[tuple[int, int]] = []
    result = Runner.run_streamed(agent(kind, called), STEPS)
    kinds = {event.type async for event in result.stream_events()}
    assert called == [(2, 3), (5, 5)] and result.final_output == "the sum is 10"
    assert {"raw_response_event", "run_item_stream_event"} <= kinds


async def typed(kind: str) -> None:
    """The answer is an instance of a class, with and without tools before it."""
    said = 'say: {"city": "Oslo", "days": 3}'
    assert (await Runner.run(agent(kind, output_type=Trip), said)).final_output == Trip(city="Oslo", days=3)
    called: list[tuple[int, int]] = []
    ask = f'call: add {{"a": 2, "b": 3}}\nthen\n{said}'
    assert (await Runner.run(agent(kind, called, output_type=Trip), ask)).final_output == Trip(city="Oslo", days=3)
    assert called == [(2, 3)]


async def forced(kind: str) -> None:
    """A required tool is called although the message says no."""
    called: list[tuple[int, int]] = []
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False, temperature=0.3, max_tokens=300)
    await Runner.run(agent(kind, called, model_settings=settings), "say: no")
    assert len(called) == 1


async def handoff(kind: str) -> None:
    """Another agent takes over."""
    other = agent(kind, name="other")
    result = await Runner.run(agent(kind, handoffs=[other]), "call: transfer_to_other {}")
    assert result.last_agent is other


async def session(kind: str) -> None:
    """A second turn brings all items of the first, reasoning included."""
    kept = SQLiteSession("one")
    thinker = agent(kind, model=model(kind, "thinks"))
    assert (await Runner.run(thinker, "first", session=kept)).final_output == "first"
    assert (await Runner.run(thinker, "second", session=kept)).final_output == "second"
    assert len(await kept.get_items()) >= 4


@check
async def responses_loop() -> None:
    await loop("responses")


@check
async def chat_loop() -> None:
    await loop("chat")


@check
async def responses_streamed() -> None:
    await streamed("responses")


@check
async def chat_streamed() -> None:
    await streamed("chat")


@check
async def responses_typed() -> None:
    await typed("responses")


@check
async def chat_typed() -> None:
    await typed("chat")


@check
async def responses_forced() -> None:
    await forced("responses")


@check
async def chat_forced() -> None:
    await forced("chat")


@check
async def responses_handoff() -> None:
    await handoff("responses")


@check
async def chat_handoff() -> None:
    await handoff("chat")


@check
async def responses_session() -> None:
    await session("responses")


@check
async def chat_session() -> None:
    await session("chat")


async def follow(is_streamed: bool) -> None:
    """The server knows the conversation; a turn sends what is new, tool results included."""
    called: list[tuple[int, int]] = []
    keeper = agent("responses", called, model=model("responses", "stored"))

    async def turn(said: str, **more: Any) -> Any:
        if not is_streamed:
            return await Runner.run(keeper, said, **more)
        result = Runner.run_streamed(keeper, said, **more)
        async for _ in result.stream_events():
            pass
        return result

    first = await turn(STEPS, auto_previous_response_id=True)
    assert called == [(2, 3), (5, 5)] and first.final_output == "the sum is 10"
    second = await turn("say: and more", previous_response_id=first.last_response_id)
    assert second.final_output == "and more"
    client = AsyncOpenAI(base_url=base_url("stored"), max_retries=0, timeout=120)
    items = [item async for item in client.responses.input_items.list(second.last_response_id, order="asc")]
    kinds = ["message", *["function_call", "function_call_output"] * 2, "message", "message"]
    assert [item.type for item in items] == kinds


@check
async def responses_follow_by_themselves() -> None:
    await follow(False)


@check
async def responses_follow_by_themselves_streamed() -> None:
    await follow(True)


@check
async def responses_follow_the_one_that_is_named() -> None:
    keeper = agent("responses", model=model("responses", "stored"))
    last = None
    for word in ("one", "two", "three"):
        result = await Runner.run(keeper, word, previous_response_id=last)
        assert result.final_output == word and result.last_response_id != last
        last = result.last_response_id


@check
async def responses_session_of_a_server_that_stores() -> None:
    kept = SQLiteSession("two")
    called: list[tuple[int, int]] = []
    keeper = agent("responses", called, model=model("responses", "stored"))
    assert (await Runner.run(keeper, STEPS, session=kept)).final_output == "the sum is 10"
    assert (await Runner.run(keeper, "say: second", session=kept)).final_output == "second"
    assert called == [(2, 3), (5, 5)]


if __name__ == "__main__":
    run()
