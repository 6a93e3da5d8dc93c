"""The event decoder against the openai SDK's, and what chunks carry."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from server.commands.http_client.event_stream import (
    BrokenStream,
    EventDecoder,
    Piece,
    StreamedUsage,
    error_message,
    read_piece,
)

TEXTS = st.text(st.sampled_from('ab {}":é😀\u2028'), min_size=1)
LINES = st.one_of(TEXTS.map(lambda text: f"data: {text}"), st.just(": ping"), st.just(""), st.just("event: x"))


@given(st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r", "\r\n"]))), st.data())
def test_any_split_gives_what_the_openai_sdk_reads(lines: list[tuple[str, str]], data: st.DataObject) -> None:
    stream = "".join(line + end for line, end in lines).encode() + b"\n\n"
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=8)) | {0, len(stream)})
    decoder = EventDecoder()
    found = [event for start, end in itertools.pairwise(cuts) for event in decoder.feed(stream[start:end])]
    assert found == [event.data for event in SSEDecoder().iter_bytes(iter([stream])) if event.data]


def test_chat_and_text_chunks() -> None:
    chat = (
        '{"choices":[{"index":0,"delta":{"content":"hi","reasoning_content":"hm"},"finish_reason":null}],"usage":null}'
    )
    assert read_piece(chat) == Piece(text="hi", reasoning="hm")
    assert read_piece('{"choices":[{"index":0,"text":"hi","finish_reason":"stop"}]}') == Piece(
        "hi", finish_reason="stop"
    )
    assert not read_piece('{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}').has_output


def test_usage() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    assert read_piece(json.dumps({"choices": [], "usage": usage})).usage == StreamedUsage(7, 3, 4)
    without_details = usage | {"prompt_tokens_details": None}
    assert read_piece(json.dumps({"choices": [], "usage": without_details})).usage == StreamedUsage(7, 3)


def test_error_events() -> None:
    assert read_piece('{"error":{"message":"gone","type":"server_error"}}').error == "gone"
    assert error_message({"detail": "Not Found"}) == "{'detail': 'Not Found'}"
    assert error_message({"error": "plain"}) == "plain"


@pytest.mark.parametrize("payload", ["{", "[]", "3", '{"object":"list"}', '{"choices":null}'])
def test_what_is_no_chunk(payload: str) -> None:
    with pytest.raises(BrokenStream):
        read_piece(payload)
