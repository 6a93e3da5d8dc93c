"""Lines of a JSON lines file: what they may say, and the field that is wrong otherwise."""

import json

import pytest

from engine.compile.calibration.calibration_file import CalibrationChat, LineRefused, is_json_line, read_line

USER = {"role": "user", "content": "Hi"}


def test_texts() -> None:
    assert read_line(b'"a string"') == "a string"
    assert read_line('{"text": "Grüße", "source": 7}'.encode()) == "Grüße"
    assert read_line(b'\xef\xbb\xbf{"text": "after a mark of byte order"}') == "after a mark of byte order"


def test_conversations_are_as_templates_take_them() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    tool = {"type": "function", "function": {"name": "f"}}
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3"},
    ]
    found = read_line(json.dumps({"messages": messages, "tools": [tool]}).encode())
    assert isinstance(found, CalibrationChat)
    assert found.tools == [tool]
    assert [message["content"] for message in found.messages] == ["one\ntwo", "", "3"]
    assert found.messages[1]["tool_calls"][0]["function"]["arguments"] == {"x": 1}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"plain", "it is not JSON: Expecting value"),
        (b'{"text": "caf\xe9"}', "it is not UTF-8 (byte 13 of the line)"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"7", 'it must be a string, {"text": ...} or {"messages": [...]}, not 7'),
        (b'["a"]', "not ['a']"),
        (b'{"prompt": "a"}', "its fields are ['prompt']"),
        (b'{"text": 5}', "'text' is 5"),
        (b'{"text": "a", "messages": []}', "it has both 'text' and 'messages'"),
        (b'{"messages": []}', "'messages' must be a list of at least one message, it is []"),
        (b'{"messages": {"role": "user"}}', "'messages' must be a list of at least one message"),
        (b'{"messages": ["a"]}', "'messages[0]' must be an object, it is 'a'"),
        (b'{"messages": [{"content": "a"}]}', "'messages[0].role' must be a string, it is None"),
        (b'{"messages": [{"from": "human", "value": "a"}]}', "'messages[0].role' must be a string"),
        (b'{"messages": [{"role": "user"}]}', "'messages[0].content' is missing"),
        (b'{"messages": [{"role": "user", "content": 5}]}', "'messages[0].content' must be a string or a list of text"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "'messages[0].content[0]' is not a text"),
        (b'{"messages": [{"role": "a", "content": "", "tool_calls": 5}]}', "'messages[0].tool_calls' must be a list"),
        (b'{"messages": [{"role": "a", "tool_calls": [5]}]}', "'messages[0].tool_calls' has an entry without a funct"),
        (json.dumps({"messages": [USER], "tools": {}}).encode(), "'tools' must be a list of objects, it is {}"),
    ],
)
def test_the_field_that_is_wrong_is_named(line: bytes, reason: str) -> None:
    with pytest.raises(LineRefused) as refused:
        read_line(line)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("line", "is_json"),
    [
        (b'{"text": "a"}', True),
        (b'{"messages": []}', True),
        (b'{"a": 1}', False),  # some program's code
        (b'"Yes," she said.', False),
        (b'"Yes."', False),
        (b"\xff", False),
    ],
)
def test_what_a_first_line_tells(line: bytes, is_json: bool) -> None:
    assert is_json_line(line) is is_json
