"""Conversations through the model's own template, which runs in a process beside this one, a few dozen at a time."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from engine.bundle.manifest import TextSpec
from engine.text.rendering import Rendered, RenderRequest, read_template
from engine.text.template_pool import render_all

TOGETHER = 64  # a renderer starts once for so many
MOST_CHARS = 16 << 20
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class CalibrationChat:
    """One conversation. messages, tools: as templates take them. plain: what stands for it without a template."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    plain: str = ""


def question(asked: str, answered: str) -> CalibrationChat:
    """A question and its answer."""
    messages = ({"role": "user", "content": asked}, {"role": "assistant", "content": answered})
    return CalibrationChat(messages, plain=f"{asked}\n{answered}")


def rendered(template: str, text: TextSpec, chats: Sequence[CalibrationChat]) -> list[Rendered]:
    """In order; a conversation that takes the template too long has an error and is the last. BundleError.

    template: its source.
    """
    names = {"bos_token": text.bos_token or "", "eos_token": text.eos_token or ""}
    requests = [RenderRequest(chat.messages, chat.tools, names, MOST_CHARS) for chat in chats]
    return asyncio.run(render_all(template, requests)) if requests else []


def spoken(folder: Path, text: TextSpec, items: Iterable[str | CalibrationChat]) -> Iterator[str]:
    """Texts as they are, conversations through the template; as plain text where there is none or it refuses one.

    folder: of the template that `text` names. BundleError when it is none.
    """
    template = read_template(folder / text.chat_template) if text.chat_template else ""
    for group in grouped(items, TOGETHER):
        chats = [item for item in group if isinstance(item, CalibrationChat)]
        answers = rendered(template, text, chats) if template else []
        if any(answer.error for answer in answers):
            template = ""  # it would refuse the others too, or take its time for each
        texts = [answer.text for answer in answers] if template else [chat.plain for chat in chats]
        said = iter(texts)
        yield from (item if isinstance(item, str) else next(said) for item in group)


def grouped(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Neighbours in lists of at most `size`."""
    left = iter(items)
    while group := list(islice(left, size)):
        yield group
