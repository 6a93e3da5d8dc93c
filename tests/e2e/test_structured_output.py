"""Random structured requests through the real engine on the embedded model: every complete answer is valid."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest_asyncio

from engine.client.engine import ClientLimits, Engine
from engine.config import EngineConfig
from engine.grammar.spec import CalledTool, Cfg, Choice, Form, GrammarSpec, JsonSchema, Regex, ToolCalls
from engine.isolation.helper_pool import HelperLimits
from engine.request import FinishReason, Request, SamplingParams
from engine.sources.resolve import default_cache, resolve_bundle
from server.generation.argument_reading import CallArguments
from server.generation.call_reading import CallBegin
from server.generation.parsing import AnswerParser
from tests.call_formats import HERMES, answers
from tests.e2e.shapes import closed, draw, record

AT_ONCE = 24
MAX_TOKENS = 250
PATTERNS = ("[0-9]{3}-[a-f]{4}", "(yes|no)( indeed)?", "^(a+)+$", r"\w{1,9}@\w{1,9}\.(com|org)", "[^x]{0,5}x")
LARK = 'start: sum\nsum: term ("+" term){0,4}\nterm: NUMBER | "(" NUMBER ")"\nNUMBER: /[0-9]{1,4}/'


@dataclass(frozen=True)
class Case:
    """One request and the judge of its answer."""

    form: Form
    schema: dict[str, Any] | None = None
    pattern: str = ""
    options: tuple[str, ...] = ()

    def check(self, text: str) -> None:
        if isinstance(self.form, ToolCalls):
            check_calls(text, self.schema or {}, self.form.most)
        elif self.schema is not None:
            jsonschema.validate(json.loads(text), self.schema, jsonschema.Draft202012Validator)
        elif self.pattern:
            assert re.fullmatch(self.pattern, text)
        else:
            assert text in self.options


def check_calls(text: str, parameters: dict[str, Any], most: int) -> None:
    pieces = AnswerParser(answers(HERMES)).feed(text, is_last=True)
    assert not any(isinstance(piece, str) for piece in pieces), text
    names = {piece.index: piece.name for piece in pieces if isinstance(piece, CallBegin)}
    assert names and len(names) <= (most or 999)
    for index, name in names.items():
        own = [piece.text for piece in pieces if isinstance(piece, CallArguments) and piece.index == index]
        jsonschema.validate(json.loads("".join(own)), parameters[name], jsonschema.Draft202012Validator)


def case(random: Random) -> Case:
    kind = random.choice(("schema",) * 7 + ("regex", "choice", "cfg", "calls", "calls"))
    if kind == "schema":
        schema = draw(random)
        return Case(JsonSchema(json.dumps(schema), whitespace=random.choice((None, ""))), schema=schema)
    if kind == "regex":
        pattern = random.choice(PATTERNS)
        return Case(Regex(pattern), pattern=pattern)
    if kind == "choice":
        options = ("yes", "no", "no way", "größer", 'a "quoted" one', "{}")
        return Case(Choice(options), options=options)
    if kind == "cfg":
        return Case(Cfg(LARK), pattern=r"([0-9]{1,4}|\([0-9]{1,4}\))(\+([0-9]{1,4}|\([0-9]{1,4}\))){0,4}")
    parameters = {"weather": record(random), "send-mail": closed({})}
    tools = tuple(CalledTool(name, json.dumps(schema)) for name, schema in parameters.items())
    return Case(ToolCalls(HERMES, tools, is_forced=True, most=random.choice((1, 2))), schema=parameters)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    folder: Path = resolve_bundle("demo", default_cache())
    # The budget is generous because a busy machine must not fail the test.
    made = Engine(EngineConfig(str(folder)), ClientLimits(helpers=HelperLimits(60.0)))
    await made.start()
    yield made
    await made.close()


async def answer(engine: Engine, number: int, chosen: Case, random: Random) -> FinishReason:
    prompt = await engine.chat_prompt([{"role": "user", "content": f"Give me a JSON object with id {number}."}])
    grammar = await engine.compile_grammar(GrammarSpec(chosen.form), "form")
    params = SamplingParams(
        max_tokens=MAX_TOKENS,
        temperature=random.choice((0.0, 0.3, 0.7, 1.0, 1.5, 2.0)),
        top_p=random.choice((1.0, 1.0, 0.9)),
        top_k=random.choice((0, 0, 5)),
        repetition_penalty=random.choice((1.0, 1.3)),
        logit_bias=random.choice(((), ((7, 50.0), (100, 100.0)))),
        seed=number,
        grammar=grammar,
    )
    text, finish = "", None
    async for delta in engine.submit(Request(f"r{number}", prompt, params)):
        text, finish = text + delta.text, delta.finish
    assert finish is not None
    if finish is FinishReason.STOP:
        try:
            chosen.check(text)
        except (AssertionError, ValueError, jsonschema.ValidationError) as error:
            raise AssertionError(f"request {number}, {chosen.form}: {text!r}: {error}") from error
    return finish


async def test_every_complete_answer_is_valid_at_any_temperature(engine: Engine) -> None:
    await check(engine, 60)


async def check(engine: Engine, count: int) -> None:
    """Ask so many times, at most a few at once; few answers are cut."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> FinishReason:
        async with room:
            random = Random(number)
            return await answer(engine, number, case(random), random)

    finishes = await asyncio.gather(*(one(number) for number in range(count)))
    cut = finishes.count(FinishReason.LENGTH)
    print(f"{count} requests: {finishes.count(FinishReason.STOP)} complete and valid, {cut} cut by max_tokens")
    assert finishes.count(FinishReason.STOP) + cut == count
    assert cut <= count // 5, "most forms of the corpus are short"
