"""The events of a message: legal in every stream, and the same message as the whole answer."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Busy, StepFailed
from engine.request import Delta, FinishReason
from server.api.anthropic.message import MessageWriter, OpenToolUse, SaidToolUse
from server.api.anthropic.request import ToolUseBlock
from server.generation.answers import Envelope, TokenCount
from server.generation.parsing import AnswerParser, ParsedChoice
from server.generation.stream import ChoiceDelta
from tests.call_formats import HERMES, THINK, answers
from tests.server.message_events import check_legal, message_of

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": [1, "}"]}}\n</tool_call>'
WRONG = CALL.replace('[1, "}"]', "one")
PIECES = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    CALL,
    '{"name": "f", "arguments": {',
    "}",
    " ",
    "Hi é",
    "\n",
)
plain = msgspec.to_builtins  # as it is written
FINISHES = [FinishReason.STOP, FinishReason.LENGTH]


def writer_of(
    shows_thoughts: bool = True, is_window_bound: bool = False, stops: tuple[str, ...] = ("END",)
) -> MessageWriter:
    terms = (stops, is_window_bound, shows_thoughts, "req_1")
    choice = ParsedChoice(AnswerParser(answers(HERMES), reasoning=THINK))
    return MessageWriter(TokenCount((3,), 1), choice, Envelope("msg-1", 1, "m", "f"), *terms)


def streamed(writer: MessageWriter, deltas: Sequence[Delta]) -> list[dict[str, Any]]:
    """Every event, each as it is written at its time."""
    found = [msgspec.to_builtins(event) for delta in deltas for event in writer.chunks([ChoiceDelta(0, delta)])]
    return found + (plain(writer.last_chunks()) if writer.finished else [])


def whole(writer: MessageWriter, deltas: Sequence[Delta]) -> dict[str, Any]:
    writer.chunks([ChoiceDelta(0, delta) for delta in deltas])
    return plain(writer.answer())


def cut(text: str, finish: FinishReason, stopped_by: str | None = None) -> list[Delta]:
    """One delta a character."""
    deltas = [Delta(character, (7,)) for character in text]
    return [*deltas, Delta("", (2,), finish=finish, stopped_by=stopped_by)]


def kinds(message: dict[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"content": [{key: block[key] for key in block if key != "id"} for block in message["content"]]}


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.integers(1, 9), st.sampled_from(FINISHES), st.booleans())
def test_every_stream_is_legal(pieces: list[str], size: int, finish: FinishReason, shows_thoughts: bool) -> None:
    text = "".join(pieces)
    deltas = [Delta(text[start : start + size], (7,)) for start in range(0, len(text), size)]
    deltas.append(Delta("", (2,), finish=finish))
    events = streamed(writer_of(shows_thoughts), deltas)
    check_legal(events)
    answer = whole(writer_of(shows_thoughts), deltas)
    assert events[-2]["delta"]["stop_reason"] == answer["stop_reason"]
    calls = sum(event.get("content_block", {}).get("type") == "tool_use" for event in events)
    try:
        message = message_of(events)
    except json.JSONDecodeError:  # an input that was cut or is wrong
        assert kinds(answer).count("tool_use") < calls
        return
    assert kinds(answer).count("tool_use") == calls
    assert without_ids(answer) == without_ids(message)


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.integers(0, 30))
def test_a_stream_that_breaks_is_legal(pieces: list[str], place: int) -> None:
    writer = writer_of()
    events = plain(writer.chunks([])) + streamed(writer, [Delta(one, (7,)) for one in "".join(pieces)[:place]])
    check_legal([*events, *plain(writer.failure(StepFailed("broken")))])


LEGAL = streamed(writer_of(), cut(f"<think>Hm</think>Hi{CALL}", FinishReason.STOP))
STARTS = [place for place, event in enumerate(LEGAL) if event["type"] == "content_block_start"]


@pytest.mark.parametrize(
    "events",
    [
        LEGAL[1:],
        LEGAL[:-1],
        [*LEGAL, LEGAL[-1]],
        [LEGAL[0], *LEGAL],
        [event for event in LEGAL if event.get("delta", {}).get("type") != "signature_delta"],
        [event for event in LEGAL if event["type"] != "content_block_stop"],
        LEGAL[: STARTS[0]] + LEGAL[STARTS[1] :],
        LEGAL[: STARTS[1]] + LEGAL[STARTS[1] + 1 :],
        [event for event in LEGAL if event["type"] != "message_delta"],
        [event | {"index": 0} if "index" in event else event for event in LEGAL],
    ],
    ids=[
        *("no begin", "no end", "two ends", "two begins", "no signature", "no end of a block", "a block left out"),
        *("a block without its begin", "no reason", "one index for all"),
    ],
)
def test_the_table_of_legal_events_refuses(events: list[dict[str, Any]]) -> None:
    check_legal(LEGAL)
    with pytest.raises(AssertionError):
        check_legal(events)


def test_thoughts_text_and_a_call() -> None:
    events = streamed(writer_of(), cut(f"<think>\nHm, ok.\n</think>\n\nHi.\n{CALL}", FinishReason.STOP))
    check_legal(events)
    answer = message_of(events)
    thinking, said, call = answer["content"]
    assert thinking == {"type": "thinking", "thinking": "Hm, ok.", "signature": "unsigned"}
    assert said == {"type": "text", "text": "Hi."}
    assert call == {"type": "tool_use", "id": call["id"], "name": "f", "input": {"x": [1, "}"]}}
    assert call["id"].startswith("toolu_")
    assert (answer["stop_reason"], answer["id"]) == ("tool_use", "msg_1")
    assert 0 < answer["usage"]["output_tokens_details"]["thinking_tokens"] < answer["usage"]["output_tokens"]


def test_thoughts_that_are_left_out_travel_in_the_signature() -> None:
    events = streamed(writer_of(shows_thoughts=False), cut("<think>Hm é</think>Hi", FinishReason.STOP))
    check_legal(events)
    assert "Hm" not in json.dumps(events)
    (thinking, _) = message_of(events)["content"]
    assert thinking == {"type": "thinking", "thinking": "", "signature": "held.SG0gw6k="}


@pytest.mark.parametrize(
    ("finish", "stopped_by", "is_window_bound", "wanted"),
    [
        (FinishReason.STOP, None, False, ("end_turn", None)),
        (FinishReason.STOP, "END", False, ("stop_sequence", "END")),
        (FinishReason.STOP, "<of the model>", True, ("end_turn", None)),
        (FinishReason.LENGTH, None, False, ("max_tokens", None)),
        (FinishReason.LENGTH, None, True, ("model_context_window_exceeded", None)),
    ],
)
def test_why_it_ended(
    finish: FinishReason, stopped_by: str | None, is_window_bound: bool, wanted: tuple[str, str | None]
) -> None:
    answer = whole(writer_of(is_window_bound=is_window_bound), cut("Hi", finish, stopped_by))
    assert (answer["stop_reason"], answer["stop_sequence"]) == wanted


def test_a_call_that_was_cut_is_no_call() -> None:
    text = CALL[: CALL.index("]")]
    answer = whole(writer_of(), cut(text, FinishReason.LENGTH))
    assert answer["content"] == [{"type": "text", "text": '{"x": [1, "}"'}]
    assert answer["stop_reason"] == "max_tokens"


def test_a_call_whose_input_is_no_json_is_no_call() -> None:
    answer = whole(writer_of(), cut(WRONG, FinishReason.STOP))
    assert answer["content"] == [{"type": "text", "text": '{"x": one}'}]
    assert answer["stop_reason"] == "end_turn"

    (end,) = [each for each in streamed(writer_of(), cut(WRONG, FinishReason.STOP)) if each["type"] == "message_delta"]
    assert end["delta"]["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("written", "shown"),
    [("call_1", "toolu_1"), ("a-B_9", "toolu_a-B_9"), ("functions.f:0", None), ("call 1", None), ("x" * 300, None)],
)
def test_an_id_can_be_sent_back(written: str, shown: str | None) -> None:
    (event,) = OpenToolUse(0, written, "f").opened()
    assert isinstance(event.content_block, SaidToolUse)
    found = event.content_block.id
    assert ToolUseBlock(type="tool_use", id=found, name="f", input={}).id.startswith("toolu_")
    assert found == shown or (shown is None and written not in found)


def test_an_answer_of_nothing() -> None:
    events = streamed(writer_of(), cut("", FinishReason.STOP))
    check_legal(events)
    assert message_of(events)["content"] == []


def test_the_begin_is_said_once() -> None:
    writer = writer_of()
    events = plain(writer.chunks([])) + streamed(writer, cut("Hi", FinishReason.STOP))
    check_legal(events)
    assert [event["type"] for event in events].count("message_start") == 1


def test_a_failure_has_its_type() -> None:
    (event,) = plain(writer_of().failure(Busy.shutting_down()))
    assert event["error"] == {"type": "overloaded_error", "message": "The server is shutting down."}
    assert event["request_id"] == "req_1"
