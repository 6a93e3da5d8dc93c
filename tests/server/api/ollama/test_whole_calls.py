"""Calls come out whole, between what was said."""

import pytest

from server.api.ollama.answers import OllamaCallAnswer, OllamaCalledAnswer, WholeCalls
from server.generation.argument_reading import CallArguments
from server.generation.call_reading import CallBegin
from server.generation.parsing import Part, Thought


def begin(index: int) -> CallBegin:
    return CallBegin(index, f"call_{index}", "f")


def written(index: int, **arguments: object) -> OllamaCallAnswer:
    return OllamaCallAnswer(f"call_{index}", OllamaCalledAnswer(index, "f", arguments))


def test_a_call_waits_for_its_end() -> None:
    calls = WholeCalls()
    assert calls.feed([Thought("hm"), "text", begin(0), CallArguments(0, '{"x"')], False) == (
        [Thought("hm"), "text"],
        [],
    )
    assert calls.feed([CallArguments(0, ": 1}")], False) == ([], [])
    assert calls.feed([begin(1), CallArguments(1, "{}")], False) == ([], [written(0, x=1)])
    assert calls.feed([], True) == ([], [written(1)])
    assert calls.feed([], True) == ([], [])


def test_text_ends_a_call() -> None:
    parts: list[Part] = [begin(0), CallArguments(0, "{}"), "and"]
    assert WholeCalls().feed(parts, False) == (["and"], [written(0)])


@pytest.mark.parametrize("arguments", ["", '{"x": ', '{"x": "' + "\ud800", "[1]"])
def test_what_was_written_of_a_call_that_cannot_be_made_is_text(arguments: str) -> None:
    shown = [arguments] if arguments else []
    assert WholeCalls().feed([begin(0), CallArguments(0, arguments)], True) == (shown, [])
    parts: list[Part] = [begin(0), CallArguments(0, arguments), begin(1), CallArguments(1, "{}"), "and"]
    assert WholeCalls().feed(parts, False) == ([*shown, "and"], [written(1)])
