"""What a gateway keeps of an exchange: prompts that begin alike do; nothing is passed on twice or lost at a break."""

import json
from typing import Any

import pytest

from deploy.gateway_calls import Exchange, prompt_text
from engine.request import Delta, FinishReason
from server.generation.stream import RESUMABLE, ChoiceDelta, comment

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
HEADERS = {"content-type": "application/json", "authorization": "Bearer k", "host": "gateway", "content-length": "9"}


def exchange(fields: dict[str, Any] | None = None, path: str = "/v1/chat/completions") -> Exchange:
    return Exchange("POST", path, HEADERS, json.dumps(fields or CHAT).encode())


def group(text: str, *ids: int, finish: FinishReason | None = None) -> tuple[bytes, bytes]:
    frame = b"data: " + json.dumps({"text": text}).encode() + b"\n\n"
    return frame, comment([ChoiceDelta(0, Delta(text, ids, finish=finish))])


def test_a_stream_is_sent_so_that_it_can_be_gone_on_with() -> None:
    call = exchange().call()
    assert dict(call.headers) == {"authorization": "Bearer k", "content-type": RESUMABLE}
    body = json.loads(call.body)
    assert body["request"] == CHAT and body["resumption"]["delivered"] == []


def test_a_response_that_is_not_stored_is_gone_on_with_too() -> None:
    path, encoded = "/v1/responses", json.dumps(CHAT).encode()
    assert Exchange("POST", path, HEADERS, encoded).is_resumable
    assert not Exchange("POST", path, HEADERS, encoded, may_store=True).is_resumable
    one = Exchange("POST", path, HEADERS, json.dumps({**CHAT, "store": False}).encode(), may_store=True)
    one.call()
    frame, _ = group("a", 1)
    assert one.is_resumable
    assert one.take(frame + comment([ChoiceDelta(0, Delta("a", (1,)))], 9)) == frame
    again = json.loads(one.call().body)["resumption"]
    assert again["delivered"] == [{"choice": 0, "token_ids": [1], "events": 9}]


@pytest.mark.parametrize(
    ("fields", "path"),
    [({**CHAT, "stream": False}, "/v1/chat/completions"), (CHAT, "/v1/messages"), ({}, "/v1/models")],
)
def test_everything_else_is_sent_as_it_came(fields: dict[str, Any], path: str) -> None:
    one = Exchange("POST", path, HEADERS, json.dumps(fields).encode())
    assert not one.is_resumable and one.call().body == json.dumps(fields).encode()
    assert dict(one.call().headers) == {"content-type": "application/json", "authorization": "Bearer k"}
    assert one.take(b"abc") == b"abc" and one.rest() == b""


def test_events_are_passed_on_once_their_tokens_are_noted() -> None:
    one = exchange()
    first = one.call()
    (frame, note), (other, last) = group("a", 1, 2), group("b", 3)
    assert one.take(frame) == b""
    assert one.take(note[:-1]) == b"" and one.take(note[-1:] + other[:5]) == frame
    again = json.loads(one.call().body)["resumption"]  # the machine is lost: half an event is forgotten
    assert again["delivered"] == [{"choice": 0, "token_ids": [1, 2]}]
    assert again["id"] == json.loads(first.body)["resumption"]["id"]
    assert one.take(other + last) == other
    assert json.loads(one.call().body)["resumption"]["delivered"] == [{"choice": 0, "token_ids": [1, 2, 3]}]


def test_what_no_comment_closes_is_passed_on_at_the_end() -> None:
    one = exchange()
    one.call()
    usage, done = b'data: {"usage":1}\n\n', b"data: [DONE]\n\n"
    assert one.take(b": keep-alive\n\n") == b": keep-alive\n\n"
    assert one.take(usage) == b"" and one.take(done) == usage + done and one.rest() == b""
    two = exchange()
    two.call()
    assert two.take(b'data: {"error":{}}\n\n') == b"" and two.rest() == b'data: {"error":{}}\n\n'


def test_any_cut_of_the_bytes_reads_the_same() -> None:
    parts = [group("a", 1), group("b", 2), group("c", 3, finish=FinishReason.STOP)]
    whole = b"".join(frame + note for frame, note in parts) + b"data: [DONE]\n\n"
    told = b"".join(frame for frame, _ in parts) + b"data: [DONE]\n\n"
    for size in range(1, len(whole)):
        one = exchange()
        one.call()
        pieces = [one.take(whole[start : start + size]) for start in range(0, len(whole), size)]
        assert b"".join(pieces) + one.rest() == told


def test_a_prompt_begins_as_its_tokens_do() -> None:
    system, question = {"role": "system", "content": "S"}, {"role": "user", "content": "Q"}
    first = prompt_text("/p", {"messages": [system, question], "model": "m"})
    later = prompt_text("/p", {"messages": [system, question, {"role": "assistant", "content": "A"}]})
    assert later.startswith(first)
    assert prompt_text("/p", {"messages": [system], "tools": [{"x": 1}]}).startswith('[{"x": 1}]')
    assert prompt_text("/p", {"prompt": "abc"}) == "abc"
    assert prompt_text("/p", {"prompt": [1, 2, 3]}) == "1,2,3" and prompt_text("/p", {"input": "x"}) == "x"
    for empty in ({}, {"prompt": ""}, {"messages": []}, {"prompt": None}, {"messages": [None]}):
        assert prompt_text("/p", empty) == "/p"


def test_a_body_that_is_no_object_is_the_servers_to_refuse() -> None:
    one = Exchange("POST", "/v1/chat/completions", HEADERS, b"[" * 2000)
    assert one.call().body == b"[" * 2000 and one.call().prompt == "/v1/chat/completions"
