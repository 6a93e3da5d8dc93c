"""The generated training text is well-formed and keeps the evaluation's prompts out."""

import json
import re
from collections.abc import Iterator
from random import Random

import pytest

from tools.demo_model.corpus.arithmetic import solution
from tools.demo_model.corpus.capitals import COUNTRIES, HELD_OUT_PHRASINGS, capitals
from tools.demo_model.corpus.conversation import Sample, render
from tools.demo_model.corpus.held_out import pair_key, reserved
from tools.demo_model.corpus.json_objects import json_objects
from tools.demo_model.corpus.lists import copying, lists, reversal
from tools.demo_model.corpus.mixture import FAMILIES, draw
from tools.demo_model.corpus.tools import fitting, tools
from tools.demo_model.exam import exams

_SOLUTION = re.compile(r"^(\d+) ([+-]) (\d+)(?:: (.*), so| =) (\d+)", re.MULTILINE)
_STEP = re.compile(r"(\d+) ([+-]) (\d+)( \+ 1)? = (\d+)")


def _texts(count: int) -> Iterator[str]:
    for index in range(count):
        yield "".join(span.text for span in render(draw(Random(f"training-1-{index}"))))


@pytest.mark.parametrize("name", list(FAMILIES))
def test_samples_alternate_between_user_and_assistant(name: str) -> None:
    rng = Random(3)
    for _ in range(200):
        sample = FAMILIES[name].make(rng)
        if sample.document:
            continue
        roles = [turn.role for turn in sample.turns if turn.role not in ("system", "tool")]
        assert roles[0] == "user" and roles[-1] == "assistant"
        assert all(turn.content or turn.calls for turn in sample.turns)
        assert any(span.learned for span in render(sample))


def test_the_same_seed_gives_the_same_sample() -> None:
    assert [draw(Random(7)) for _ in range(3)] == [draw(Random(7))] * 3


def _result(first: str, sign: str, second: str) -> int:
    return int(first) + int(second) if sign == "+" else int(first) - int(second)


def test_solutions_and_their_steps_are_right() -> None:
    rng = Random(1)
    found = 0
    for _ in range(300):
        text = "".join(span.text for span in render(FAMILIES["arithmetic"].make(rng)))
        for first, sign, second, steps, result in _SOLUTION.findall(text):
            assert int(result) == _result(first, sign, second)
            for left, step_sign, right, carry, step_result in _STEP.findall(steps):
                assert int(step_result) == _result(left, step_sign, right) + bool(carry)
            found += 1
    assert found > 300


@pytest.mark.parametrize(
    ("first", "sign", "second", "text"),
    [
        (3, "+", 4, "3 + 4 = 7"),
        (58, "+", 87, "58 + 87: 8 + 7 = 15, 5 + 8 + 1 = 14, so 145"),
        (81, "-", 76, "81 - 76: 11 - 6 = 5, 7 - 7 = 0, so 5"),
        (500, "-", 123, "500 - 123: 10 - 3 = 7, 9 - 2 = 7, 4 - 1 = 3, so 377"),
    ],
)
def test_solutions_are_written_digit_by_digit(first: int, sign: str, second: int, text: str) -> None:
    assert solution(first, sign, second) == text


def test_tool_calls_fit_an_offered_tool() -> None:
    rng = Random(2)
    for _ in range(300):
        sample = tools(rng)
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in sample.tools}
        assert len(offered) == len(sample.tools)
        for call in (call for turn in sample.turns for call in turn.calls):
            parameters = offered[call.name]
            assert set(parameters.get("required", ())) <= set(call.arguments) <= set(parameters["properties"])


def test_rendered_tool_calls_are_json() -> None:
    rng = Random(4)
    for _ in range(100):
        text = "".join(span.text for span in render(fitting(rng)) if span.learned)
        (body,) = re.findall(r"<tool_call>\n(.*)\n</tool_call>", text)
        assert set(json.loads(body)) == {"name", "arguments"}


def test_json_answers_parse() -> None:
    rng = Random(5)
    for _ in range(100):
        assert json.loads(json_objects(rng).turns[-1].content)


def test_lists_are_copied_and_reversed() -> None:
    rng = Random(6)
    request, answer = copying(rng, 24)
    assert request.endswith(answer)
    request, answer = reversal(rng, 5)
    items = re.split(r",? ", answer)
    assert re.split(r",? ", request)[-5:] == items[::-1]


def test_countries_are_many_and_unique() -> None:
    assert len({country.name for country in COUNTRIES}) == len(COUNTRIES) >= 150


def test_training_never_uses_the_held_out_phrasings() -> None:
    openings = tuple(phrasing.split("{}")[0].lower() for phrasing in HELD_OUT_PHRASINGS)
    rng = Random(8)
    for _ in range(2000):
        assert not any(turn.content.lower().startswith(openings) for turn in capitals(rng).turns)


def test_training_never_uses_a_held_out_pair() -> None:
    for text in _texts(2000):
        for first, sign, second, *_ in _SOLUTION.findall(text):
            assert not reserved(pair_key(int(first), int(second), sign))


def test_training_never_uses_a_held_out_list() -> None:
    rng = Random(9)
    for _ in range(500):
        sample = lists(rng)
        assert sample.document or not reserved(sample.turns[0].content)


def test_exam_prompts_are_disjoint_from_the_training_stream() -> None:
    asked = {question.sample.turns[0].content for exam in exams(30) for question in exam.questions}
    trained: set[str] = set()
    for index in range(4000):
        sample: Sample = draw(Random(f"training-1-{index}"))
        trained.update(turn.content for turn in sample.turns if turn.role == "user")
    assert len(asked) > 150
    assert not asked & trained
