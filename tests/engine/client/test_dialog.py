"""A dialog over a scripted worker: every query carries what was said before; any checkpoint can be gone back to."""

import pytest

from engine.client.dialog import Dialog
from engine.errors import EngineFailure
from engine.request import SamplingParams
from tests.engine.client.client_stage import Stage, stage
from tests.engine.client.scripted_worker import expected_text

__all__ = ["stage"]
FIVE = SamplingParams(5)


async def said(dialog: Dialog, text: str) -> str:
    return "".join([delta.text async for delta in dialog.query(tuple(text.encode()), FIVE)])


async def test_going_back_gives_the_same_answer_again(stage: Stage) -> None:
    dialog = Dialog(await stage.engine(), "chat")
    first = await said(dialog, "hello")
    assert first == expected_text(tuple(b"hello"), 5)
    point = dialog.checkpoint
    second = await said(dialog, "and?")
    assert second == expected_text((*b"hello", *first.encode(), *b"and?"), 5)
    assert dialog.checkpoint == 5 + 5 + 4 + 5
    dialog.rewind(point)
    assert (dialog.checkpoint, await said(dialog, "and?")) == (10, second)
    dialog.rewind(point)
    assert await said(dialog, "or not?") != second
    dialog.rewind(0)
    assert await said(dialog, "hello") == first


async def test_what_was_delivered_is_part_of_it(stage: Stage) -> None:
    dialog = Dialog(await stage.engine(), "chat")
    with pytest.raises(EngineFailure):
        await said(dialog, "fail@2")
    assert dialog.checkpoint == 6 + 2


async def test_one_query_at_a_time(stage: Stage) -> None:
    dialog = Dialog(await stage.engine(), "chat")
    answer = dialog.query(tuple(b"hello"), FIVE)
    await anext(answer)
    for action in (lambda: dialog.rewind(0), lambda: said(dialog, "x").send(None)):
        with pytest.raises(ValueError, match="is answering"):
            action()
    await answer.aclose()  # type: ignore[attr-defined]
    for wrong in (-1, 99):
        with pytest.raises(ValueError, match=f"cannot go back to {wrong}"):
            dialog.rewind(wrong)
    dialog.rewind(0)
