"""What a gateway gives and notes, and that a stream never says again what was delivered."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.request import Delivered, Delta, FinishReason
from server.generation.framing import EVENTS, PlainEnding, frames
from server.generation.stream import ChoiceDelta, DeliveredChoice, Resumption, comment, noted, unwrapped
from server.http.errors import Refusal
from server.http.fields import Answer

GIVEN: dict[str, Any] = {"id": "a" * 32, "created": 7, "seed": 3, "delivered": [{"choice": 0, "token_ids": [1, 2]}]}


def test_a_comment_is_noted_as_it_was_told() -> None:
    told = [
        ChoiceDelta(1, Delta("x", (4, 5))),
        ChoiceDelta(0, Delta("y", (6,), finish=FinishReason.STOP, stopped_by="y")),
    ]
    line = comment(told)
    assert line.startswith(b":") and line.endswith(b"\n\n") and line.count(b"\n") == 2
    assert noted(line) == (
        DeliveredChoice(1, (4, 5)),
        DeliveredChoice(0, (6,), FinishReason.STOP, "y"),
    )
    assert noted(b": keep-alive") is None and noted(b"data: {}") is None


def test_what_is_delivered_adds_up_by_choice_and_the_last_word_counts() -> None:
    first = Resumption("a" * 32, 7, 3).with_more([DeliveredChoice(0, (1,)), DeliveredChoice(1, (2,))])
    both = first.with_more([DeliveredChoice(0, (3,), FinishReason.LENGTH)])
    assert both.of(0) == Delivered((1, 3), FinishReason.LENGTH)
    assert both.of(1) == Delivered((2,)) and both.of(2) is None
    assert (both.id, both.created, both.seed) == ("a" * 32, 7, 3)


def test_a_wrapped_request_is_taken_apart() -> None:
    request, resumption = unwrapped({"request": {"model": "m"}, "resumption": GIVEN})
    assert request == {"model": "m"} and resumption.of(0) == Delivered((1, 2))
    most = {**GIVEN, "created": (1 << 40) - 1, "seed": (1 << 32) - 1}
    assert unwrapped({"request": {}, "resumption": most})[1].seed == most["seed"]


@pytest.mark.parametrize(
    "body",
    [
        {"request": {}},
        {"request": [], "resumption": GIVEN},
        {"request": {}, "resumption": GIVEN, "more": 1},
        *(
            {"request": {}, "resumption": {**GIVEN, **wrong}}
            for wrong in (
                {"id": "a" * 7},
                {"id": "a" * 65},
                {"created": -1},
                {"created": 1 << 40},
                {"seed": -1},
                {"seed": 1 << 32},
                {"delivered": [{"choice": -1, "token_ids": []}]},
                {"delivered": [{"choice": 1024, "token_ids": []}]},
                {"delivered": [{"choice": 0, "token_ids": [-1]}]},
                {"delivered": [{"choice": 0, "token_ids": [1 << 31]}]},
                {"delivered": [{"choice": 0, "token_ids": [], "events": -1}]},
                {"delivered": GIVEN["delivered"] * 2},
            )
        ),
    ],
)
def test_anything_else_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as caught:
        unwrapped(body)
    assert caught.value.error.status == 400


NOTING = replace(EVENTS, notes_tokens=True)


class Stream:
    def __init__(self, *batches: Sequence[ChoiceDelta]) -> None:
        self.batches = list(batches)

    async def deltas(self) -> Sequence[ChoiceDelta]:
        return self.batches.pop(0)

    def abort(self) -> None:
        self.batches.clear()


class Writer(PlainEnding):
    def __init__(self) -> None:
        self.heard: list[str] = []

    @property
    def finished(self) -> bool:
        return "c" in self.heard

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[dict[str, Any]]:
        self.heard += [delta.text for _, delta in deltas]
        return [{"text": delta.text} for _, delta in deltas]

    def last_chunks(self) -> list[dict[str, Any]]:
        return []

    def take(self, deltas: Sequence[ChoiceDelta]) -> None:
        raise AssertionError("it streams")

    def answer(self) -> Answer:
        raise AssertionError("it streams")


@pytest.mark.parametrize("is_together", [True, False])
async def test_the_writer_hears_what_is_known_and_the_client_does_not(is_together: bool) -> None:
    known, new = ChoiceDelta(0, Delta("a", (1,), is_known=True)), ChoiceDelta(0, Delta("b", (2,)))
    last = ChoiceDelta(0, Delta("c", (3,), finish=FinishReason.STOP))
    batches = [[known, new], [last]] if is_together else [[known], [new], [last]]
    writer = Writer()
    pieces = [piece async for piece in frames(Stream(*batches), [], writer, NOTING)]  # type: ignore[arg-type]
    assert writer.heard == ["a", "b", "c"]
    assert b"".join(pieces) == (
        b'data: {"text":"b"}\n\n: delivered [{"choice":0,"token_ids":[2]}]\n\n'
        b'data: {"text":"c"}\n\n: delivered [{"choice":0,"token_ids":[3],"finish":"stop"}]\n\ndata: [DONE]\n\n'
    )
