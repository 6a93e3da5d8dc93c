"""The chunks of a chat, without a route."""

from dataclasses import replace

import msgspec
from msgspec import UNSET

from engine.request import Delta, FinishReason, RequestTimings
from server.api.openai.chat import ChatChunk, ChatWriter
from server.generation.answers import Envelope, StreamUsage, TokenCount
from server.generation.chat_request import StreamOptions
from server.generation.parsing import AnswerParser, ParsedChoice
from server.generation.stream import ChoiceDelta
from tests.server.scripted_engine import NAME


def test_the_first_chunks_give_every_choice_its_role_in_order() -> None:
    count = TokenCount((3, 3), 2)
    writer = ChatWriter(
        Envelope("id", 1, NAME, "f"),
        count,
        [ParsedChoice(AnswerParser()) for _ in range(2)],
        None,
        StreamUsage(count, None),
    )
    chunks = msgspec.to_builtins(
        writer.chunks([ChoiceDelta(1, Delta("b", (7,)))]) + writer.chunks([ChoiceDelta(0, Delta("a", (8,)))])
    )
    role = {"role": "assistant", "content": ""}
    said = [(chunk["choices"][0]["index"], chunk["choices"][0]["delta"]) for chunk in chunks]
    assert said == [(0, role), (1, role), (1, {"content": "b"}), (0, {"content": "a"})]


def test_how_long_it_took_stands_beside_the_usage() -> None:
    """Two choices of one prompt: the prompt counts once, tokens add up, times are those of the slower choice."""
    count = TokenCount((5, 5), 2)
    for choice, (generate_ms, tokens, guessed) in enumerate(((100.0, (7, 8, 9), 2), (200.0, (7,), 3))):
        timings = RequestTimings(3.0 + choice, 10.0, generate_ms, 5, 1, len(tokens), guessed, 1)
        timings = replace(timings, first_token_ms=13.0 + choice, devices=("NPU", "CPU"))
        count.add(choice, Delta("a", tokens, finish=FinishReason.STOP, timings=timings))
    whole = Envelope("id", 1, NAME, "f").around(ChatChunk, [])
    assert msgspec.to_builtins(count.on(whole))["timings"] == {
        "cache_n": 1,
        "prompt_n": 4,
        "prompt_ms": 10.0,
        "prompt_per_second": 400.0,
        "predicted_n": 4,
        "predicted_ms": 200.0,
        "predicted_per_second": 10.0,
        "draft_n": 5,
        "draft_n_accepted": 2,
        "queue_ms": 4.0,
        "first_token_ms": 13.0,
        "devices": ["NPU", "CPU"],
    }


def test_an_answer_without_a_token_has_no_first_one() -> None:
    count = TokenCount((5,), 1)
    count.add(0, Delta("", finish=FinishReason.LENGTH, timings=RequestTimings(1.0, 2.0, 0.0, 5, 0, 0)))
    timings = msgspec.to_builtins(count.on(Envelope("id", 1, NAME, "f").around(ChatChunk, [])))["timings"]
    assert (timings["predicted_n"], timings["predicted_per_second"], timings["first_token_ms"]) == (0, 0.0, 0.0)


def test_a_stream_says_it_with_the_usage_that_was_asked_for() -> None:
    for options, found in ((None, 0), (StreamOptions(include_usage=True), 1)):
        count = TokenCount((5,), 1)
        count.add(0, Delta("a", (7,), finish=FinishReason.STOP, timings=RequestTimings(1.0, 2.0, 3.0, 5, 0, 1)))
        chunks = StreamUsage(count, options).last(Envelope("id", 1, NAME, "f").around(ChatChunk, []))
        assert [chunk.timings is not UNSET for chunk in chunks] == [True] * found
