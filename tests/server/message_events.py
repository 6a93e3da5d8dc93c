"""What Anthropic's format allows in a stream of events, as one table, and the message that a stream adds up to."""

import json
from collections.abc import Sequence
from typing import Any

from server.api.anthropic.message import MessageEvent
from tests.server.answers import check_answer

# state -> event -> next state. "block" and "signed" are inside of a content block.
LEGAL = {
    "nothing": {"message_start": "message"},
    "message": {"content_block_start": "block", "message_delta": "ended", "ping": "message", "error": "over"},
    "block": {"content_block_delta": "block", "content_block_stop": "message", "ping": "block", "error": "over"},
    "signed": {"content_block_stop": "message", "ping": "signed", "error": "over"},
    "ended": {"message_stop": "over"},
    "over": {},
}
DELTAS = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}
FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each named after its type; comments are not allowed in it."""
    frames = text.split("\n\n")
    assert frames[-1] == ""
    found = []
    for frame in frames[:-1]:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def check_legal(events: Sequence[dict[str, Any]], is_whole: bool = True) -> None:
    """Fail unless the events come in a legal order; is_whole: the stream has ended."""
    state, index, kind = "nothing", -1, ""
    for event in events:
        check_answer(MessageEvent, event)
        assert event["type"] in LEGAL[state], f"{event['type']} in state {state}"
        if event["type"] == "content_block_start":
            assert event["index"] == index + 1
            index, kind = event["index"], event["content_block"]["type"]
        elif event["type"].startswith("content_block"):
            assert event["index"] == index
        assert event["type"] != "content_block_stop" or kind != "thinking" or state == "signed"
        state = LEGAL[state][event["type"]]
        if event["type"] == "content_block_delta":
            assert event["delta"]["type"] in DELTAS[kind]
            state = "signed" if event["delta"]["type"] == "signature_delta" else state
    assert state == "over" or not is_whole


def message_of(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message of a stream that ended well, put together as SDKs do."""
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                message = json.loads(json.dumps(event["message"]))
            case "content_block_start":
                message["content"].append(dict(event["content_block"]))
            case "content_block_delta":
                delta, block = event["delta"], message["content"][event["index"]]
                if delta["type"] == "input_json_delta":
                    inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
                else:
                    block[FIELDS[delta["type"]]] += delta[FIELDS[delta["type"]]]
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    for index, text in inputs.items():
        message["content"][index]["input"] = json.loads(text)
    return message
