"""instructor judges: pydantic models out of every mode it has for OpenAI, whole, partial, many, and asked again."""

# servers: demo thinks

import os
from collections.abc import Iterable
from typing import Any, Literal

import instructor
from checking import MODEL, base_url, check, run
from instructor import Mode
from instructor.core.exceptions import IncompleteOutputException
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field, field_validator

CHAT_MODES = (Mode.TOOLS, Mode.JSON, Mode.JSON_SCHEMA, Mode.MD_JSON)


class Trip(BaseModel):
    """A trip to a city."""

    city: str = Field(max_length=30)
    days: int = Field(ge=1, le=60)


class Weather(BaseModel):
    """Ask for the weather."""

    city: str


class Clock(BaseModel):
    """Ask for the time."""

    zone: Literal["UTC", "CET"]


class Even(BaseModel):
    """A model that is not content with every number."""

    number: int

    @field_validator("number")
    @classmethod
    def is_even(cls, value: int) -> int:
        """Refuse odd numbers."""
        if value % 2:
            raise ValueError('this one is odd\nsay: {"number": 4}\n')  # the scripted model takes the hint
        return value


def client(mode: Mode, server: str = "scripted", **given: Any) -> Any:
    """instructor around an SDK that does not retry."""
    return instructor.from_openai(OpenAI(base_url=base_url(server), max_retries=0, **given), mode=mode)


def user(text: str) -> Any:
    """Messages of one user."""
    return [{"role": "user", "content": text}]


PARIS = user('say: {"city": "Paris", "days": 3}')
TOOL_PARIS = user("A trip to Paris for 3 days")


def is_paris(trip: Trip) -> bool:
    """True for what was asked; instructor hangs the completion on a model, so `==` would not do."""
    return isinstance(trip, Trip) and trip.model_dump() == {"city": "Paris", "days": 3}


def asks_for_paris(mode: Mode) -> Any:
    """The request as the scripted model understands it in a mode."""
    return TOOL_PARIS if mode in (Mode.TOOLS, Mode.RESPONSES_TOOLS) else PARIS


def created(mode: Mode) -> None:
    """A model, and the completion it came from."""
    trip, raw = client(mode).chat.completions.create_with_completion(
        model=MODEL, messages=asks_for_paris(mode), response_model=Trip, max_retries=0
    )
    assert is_paris(trip)
    assert raw.usage.completion_tokens > 0


@check
def tools() -> None:
    created(Mode.TOOLS)


@check
def json_mode() -> None:
    created(Mode.JSON)


@check
def json_schema() -> None:
    created(Mode.JSON_SCHEMA)


@check
def markdown_json() -> None:
    created(Mode.MD_JSON)


@check
def tools_strict() -> None:
    trip = client(Mode.TOOLS).chat.completions.create(
        model=MODEL, messages=TOOL_PARIS, response_model=Trip, strict=True, max_retries=0
    )
    assert is_paris(trip)


@check
def responses_tools() -> None:
    trip = client(Mode.RESPONSES_TOOLS).responses.create(
        model=MODEL, input=TOOL_PARIS, response_model=Trip, max_retries=0
    )
    assert is_paris(trip)


@check
def partials() -> None:
    for mode in (Mode.TOOLS, Mode.JSON, Mode.JSON_SCHEMA):
        seen = list(
            client(mode).chat.completions.create_partial(
                model=MODEL, messages=asks_for_paris(mode), response_model=Trip, max_retries=0
            )
        )
        assert (seen[-1].city, seen[-1].days) == ("Paris", 3), mode
        assert len(seen) > 1 and all(part.city is None or "Paris".startswith(part.city) for part in seen), mode


@check
def iterables() -> None:
    text = 'say: {"tasks": [{"city": "Oslo", "days": 1}, {"city": "Rome", "days": 2}]}'
    called = 'call: IterableTrip {"tasks": [{"city": "Oslo", "days": 1}, {"city": "Rome", "days": 2}]}'
    for mode in (Mode.TOOLS, Mode.JSON, Mode.JSON_SCHEMA):
        found = list(
            client(mode).chat.completions.create_iterable(
                model=MODEL,
                messages=user(called if mode is Mode.TOOLS else text),
                response_model=Trip,
                max_retries=0,
            )
        )
        assert [trip.city for trip in found] == ["Oslo", "Rome"], mode


@check
def parallel_tools() -> None:
    asked = user('call: Weather {"city": "Oslo"}\ncall: Clock {"zone": "CET"}')
    found = list(
        client(Mode.PARALLEL_TOOLS).chat.completions.create(
            model=MODEL, messages=asked, response_model=Iterable[Weather | Clock], max_retries=0
        )
    )
    assert found == [Weather(city="Oslo"), Clock(zone="CET")]


@check
def literals_and_lists() -> None:
    tools_client = client(Mode.TOOLS).chat.completions
    simple = tools_client.create(model=MODEL, messages=user("yes"), response_model=Literal["no", "yes"], max_retries=0)
    assert simple == "yes"
    several = tools_client.create(model=MODEL, messages=user("3"), response_model=list[int], max_retries=0)
    assert isinstance(several, list)


@check
def asked_again() -> None:
    """The first answer is refused by the validator; the model reads why and answers otherwise."""
    asked: list[int] = []
    for mode, text in (
        (Mode.TOOLS, 'call: Even {"number": 3}\nthen\ncall: Even {"number": 4}'),
        (Mode.JSON, 'say: {"number": 3}'),
        (Mode.JSON_SCHEMA, 'say: {"number": 3}'),
    ):
        made = client(mode)
        made.on("completion:kwargs", lambda *_, **given: asked.append(len(given["messages"])))
        asked.clear()
        found = made.chat.completions.create(model=MODEL, messages=user(text), response_model=Even, max_retries=2)
        assert found.number == 4 and len(asked) == 2 and asked[1] > asked[0], (mode, asked)


@check
async def asynchronous() -> None:
    made = instructor.from_openai(AsyncOpenAI(max_retries=0), mode=Mode.TOOLS)
    trip = await made.chat.completions.create(model=MODEL, messages=TOOL_PARIS, response_model=Trip, max_retries=0)
    assert is_paris(trip)
    parts = made.chat.completions.create_partial(model=MODEL, messages=TOOL_PARIS, response_model=Trip, max_retries=0)
    assert [part async for part in parts][-1].days == 3


@check
def a_model_that_thinks() -> None:
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        trip = client(mode, "thinks").chat.completions.create(
            model=MODEL, messages=asks_for_paris(mode), response_model=Trip, max_retries=0
        )
        assert is_paris(trip), mode


@check
def any_model_at_any_temperature() -> None:
    """The embedded model knows nothing of trips: the forms alone make its answers valid, or cut and said to be."""
    complete = 0
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        for seed, temperature in enumerate((0.0, 0.5, 1.0, 2.0)):
            try:
                trip = client(mode, "demo").chat.completions.create(
                    model="demo",
                    messages=TOOL_PARIS,
                    response_model=Trip,
                    max_retries=0,
                    seed=seed,
                    temperature=temperature,
                    max_tokens=600,
                )
            except IncompleteOutputException:
                continue
            assert isinstance(trip, Trip), mode
            complete += 1
    assert complete >= 3, complete


@check
def a_cut_answer_is_an_error() -> None:
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        try:
            client(mode).chat.completions.create(
                model=MODEL, messages=asks_for_paris(mode), response_model=Trip, max_tokens=8, max_retries=0
            )
        except IncompleteOutputException:
            continue
        raise AssertionError(mode)


@check
def from_provider() -> None:
    made: Any = instructor.from_provider(f"openai/{MODEL}", base_url=os.environ["OPENAI_BASE_URL"])
    assert made.chat.completions.create(messages=TOOL_PARIS, response_model=Trip, max_retries=0).city == "Paris"


if __name__ == "__main__":
    run()
