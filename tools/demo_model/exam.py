"""The held-out prompts of the evaluation and what counts as a right answer to each."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from random import Random
from typing import Any

from tools.demo_model.corpus.arithmetic import phrase
from tools.demo_model.corpus.capitals import COUNTRIES, HELD_OUT_PHRASINGS, statement
from tools.demo_model.corpus.conversation import Sample, exchange
from tools.demo_model.corpus.held_out import pair_key, reserved
from tools.demo_model.corpus.json_objects import json_request
from tools.demo_model.corpus.lists import copying, reversal
from tools.demo_model.corpus.mixture import with_unrelated_tools
from tools.demo_model.corpus.tools import fitting

_CALL = re.compile(r"\s*<tool_call>\s*(\{.*\})\s*</tool_call>\s*", re.DOTALL)
_SEED = "examination"


@dataclass(frozen=True)
class Question:
    """One prompt, held as a conversation that ends with the expected answer."""

    sample: Sample
    right: Callable[[str], bool]


@dataclass(frozen=True)
class Exam:
    """The questions of one bar; without a bar the figure is only shown."""

    name: str
    questions: tuple[Question, ...]
    bar: float | None = None
    longest_answer: int = 80


def exams(limit: int) -> list[Exam]:
    """Return the exams, each of at most so many questions."""
    rng = Random(_SEED)
    tools = [fitting(rng) for _ in range(limit)]
    unfitting = [with_unrelated_tools(rng, question.sample) for question in _capitals()]
    return [
        Exam("capitals", _some(_capitals(), limit), 0.95),
        Exam("2-digit addition", _some(_sums(rng, "+"), limit), 0.90),
        Exam("copying 24 items", tuple(_list(rng, copying, 24) for _ in range(limit)), 0.95, 200),
        Exam("valid tool call", tuple(Question(each, _valid_call(each)) for each in tools), 0.90, 96),
        Exam("exact tool call", tuple(Question(each, _exact_call(each)) for each in tools), None, 96),
        Exam(
            "no call when no tool fits",
            _some([Question(each, lambda answer: "<tool_call>" not in answer) for each in unfitting], limit),
        ),
        Exam("2-digit subtraction", _some(_sums(rng, "-"), limit)),
        Exam("3-digit addition", tuple(_large_addition(rng) for _ in range(limit))),
        Exam("reversing 8 items", tuple(_list(rng, reversal, 8) for _ in range(limit)), None, 96),
        Exam("JSON object", tuple(_json(rng) for _ in range(limit)), None, 96),
    ]


def _some(questions: list[Question], limit: int) -> tuple[Question, ...]:
    return tuple(Random(_SEED).sample(questions, min(limit, len(questions))))


def _capitals() -> list[Question]:
    return [
        Question(exchange(phrasing.format(country.name), statement(country)), _containing(country.capital))
        for country in COUNTRIES
        for phrasing in HELD_OUT_PHRASINGS
    ]


def _sums(rng: Random, sign: str) -> list[Question]:
    pairs = combinations_with_replacement(range(10, 100), 2)
    ordered = (pair if sign == "+" else pair[::-1] for pair in pairs)
    return [_sum(rng, first, sign, second) for first, second in ordered if reserved(pair_key(first, second, sign))]


def _large_addition(rng: Random) -> Question:
    while True:
        first, second = rng.randint(100, 999), rng.randint(100, 999)
        if reserved(pair_key(first, second, "+")):
            return _sum(rng, first, "+", second)


def _sum(rng: Random, first: int, sign: str, second: int) -> Question:
    if sign == "+" and rng.random() < 0.5:
        first, second = second, first
    result = first + second if sign == "+" else first - second
    return Question(
        exchange(*phrase(rng, first, sign, second)), lambda answer: re.findall(r"-?\d+", answer)[-1:] == [str(result)]
    )


def _list(rng: Random, make: Callable[[Random, int], tuple[str, str]], length: int) -> Question:
    while True:
        request, answer = make(rng, length)
        if reserved(request):
            return Question(exchange(request, answer), _equal_to(answer))


def _json(rng: Random) -> Question:
    while True:
        sample = json_request(rng)
        if reserved(sample.turns[0].content):
            return Question(sample, _equal_json(sample.turns[-1].content))


def _containing(text: str) -> Callable[[str], bool]:
    return lambda answer: text in answer


def _equal_to(text: str) -> Callable[[str], bool]:
    return lambda answer: answer.strip() == text


def _equal_json(text: str) -> Callable[[str], bool]:
    return lambda answer: _parsed(answer) == json.loads(text)


def _valid_call(sample: Sample) -> Callable[[str], bool]:
    functions = {tool["function"]["name"]: tool["function"] for tool in sample.tools}
    return lambda answer: _fits(_parsed_call(answer), functions)


def _exact_call(sample: Sample) -> Callable[[str], bool]:
    (call,) = sample.turns[-1].calls
    expected = {"name": call.name, "arguments": dict(call.arguments)}
    return lambda answer: _parsed_call(answer) == expected


def _fits(call: Any, functions: Mapping[str, Any]) -> bool:
    """Tell whether a call names an offered function and gives known, complete, well-typed arguments."""
    if not isinstance(call, dict) or call.get("name") not in functions or not isinstance(call.get("arguments"), dict):
        return False
    parameters = functions[call["name"]]["parameters"]
    arguments, properties = call["arguments"], parameters["properties"]
    types: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}
    return all(key in arguments for key in parameters.get("required", ())) and all(
        key in properties and isinstance(argument, types[properties[key]["type"]])
        for key, argument in arguments.items()
    )


def _parsed_call(answer: str) -> Any:
    match = _CALL.fullmatch(answer)
    return _parsed(match[1]) if match else None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
