"""Output items of /v1/responses: built piece by piece, with the events of each step."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.request import TextLogprob
from server.writers.logprobs import chat_entries

Event = dict[str, Any]


class OutputItem(ABC):
    """One item that is being built. `index` is its place in the output, `number` 32 hexadecimal digits of its own."""

    prefix = ""

    def __init__(self, index: int, number: str) -> None:
        self.id = f"{self.prefix}_{number}"
        self._place = {"item_id": self.id, "output_index": index}
        self._index = index

    @abstractmethod
    def item(self, status: str) -> dict[str, Any]:
        """The item as it is now."""

    def opened(self) -> list[Event]:
        """The events that begin it."""
        return [{"type": "response.output_item.added", "output_index": self._index, "item": self.item("in_progress")}]

    def closed(self, status: str) -> list[Event]:
        """The events that end it."""
        return [{"type": "response.output_item.done", "output_index": self._index, "item": self.item(status)}]


class TextItem(OutputItem):
    """An item with one part of text in it: a message, or reasoning."""

    event, part_type = "", ""

    def __init__(self, index: int, number: str) -> None:
        super().__init__(index, number)
        self._place |= {"content_index": 0}
        self._texts: list[str] = []

    def grow(self, text: str) -> list[Event]:
        """More of its text."""
        self._texts.append(text)
        return [{"type": f"response.{self.event}.delta", **self._place, "delta": text}]

    def opened(self) -> list[Event]:
        """The item and its part, both empty."""
        first = super().opened()
        first[0]["item"] |= {"content": []}
        return [*first, {"type": "response.content_part.added", **self._place, "part": self.part()}]

    def closed(self, status: str) -> list[Event]:
        """The whole text, the part, the item."""
        part = self.part()
        done = {"type": f"response.{self.event}.done", **self._place, "text": part["text"]}
        ended = {"type": "response.content_part.done", **self._place, "part": part}
        return [done, ended, *super().closed(status)]

    def part(self) -> dict[str, Any]:
        """The part as it is now."""
        return {"type": self.part_type, "text": "".join(self._texts)}


class ReasoningOutput(TextItem):
    """What the model thinks."""

    prefix, event, part_type = "rs", "reasoning_text", "reasoning_text"

    def item(self, status: str) -> dict[str, Any]:
        """A reasoning item; the raw text is its content, nothing is summarised or encrypted."""
        item = {"id": self.id, "type": "reasoning", "summary": [], "content": [self.part()]}
        return item | {"encrypted_content": None, "status": status}


class MessageOutput(TextItem):
    """What the model says. `alternatives` None = no logprobs."""

    prefix, event, part_type = "msg", "output_text", "output_text"

    def __init__(self, index: int, number: str, alternatives: int | None) -> None:
        super().__init__(index, number)
        self._alternatives = alternatives
        self._logprobs: list[dict[str, Any]] = []

    def say(self, text: str, logprobs: Sequence[TextLogprob]) -> list[Event]:
        """More of its text, and the tokens it is made of."""
        entries = [] if self._alternatives is None else chat_entries(logprobs, self._alternatives)
        self._logprobs += entries
        return [event | {"logprobs": entries} for event in self.grow(text)]

    def add_logprobs(self, logprobs: Sequence[TextLogprob]) -> None:
        """Tokens that ended the text without being text."""
        if self._alternatives is not None:
            self._logprobs += chat_entries(logprobs, self._alternatives)

    def closed(self, status: str) -> list[Event]:
        """The whole text with all its logprobs."""
        done, *rest = super().closed(status)
        return [done | {"logprobs": self._logprobs}, *rest]

    def part(self) -> dict[str, Any]:
        """An output_text part."""
        return super().part() | {"annotations": [], "logprobs": list(self._logprobs)}

    def item(self, status: str) -> dict[str, Any]:
        """A message item."""
        return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": [self.part()]}


class CalledOutput(OutputItem):
    """A call whose arguments grow as text. `namespace` None = what is called is in none."""

    def __init__(self, index: int, number: str, name: str, namespace: str | None = None) -> None:
        super().__init__(index, number)
        self._name = name
        self._head = {"call_id": f"call_{number[:24]}", "name": name}
        self._head |= {} if namespace is None else {"namespace": namespace}
        self._pieces: list[str] = []

    @property
    def arguments(self) -> str:
        """What there is of them."""
        return "".join(self._pieces)

    def grow(self, text: str) -> list[Event]:
        """More of its arguments."""
        self._pieces.append(text)
        return []


class CallOutput(CalledOutput):
    """A function call."""

    prefix = "fc"

    def grow(self, text: str) -> list[Event]:
        """More of its arguments."""
        super().grow(text)
        return [{"type": "response.function_call_arguments.delta", **self._place, "delta": text}]

    def closed(self, status: str) -> list[Event]:
        """The arguments, the item."""
        whole = {"name": self._name, "arguments": self.arguments}
        return [{"type": "response.function_call_arguments.done", **self._place, **whole}, *super().closed(status)]

    def item(self, status: str) -> dict[str, Any]:
        """A function_call item."""
        item = {"id": self.id, "type": "function_call", "status": status}
        return item | {**self._head, "arguments": self.arguments}


class CustomCallOutput(CalledOutput):
    """A call of a custom tool. Its input is known when its arguments are whole: the model writes a function's call."""

    prefix = "ctc"

    def closed(self, status: str) -> list[Event]:
        """The input, the item."""
        text = custom_input(self.arguments)
        event = "response.custom_tool_call_input"
        grown = [{"type": f"{event}.delta", **self._place, "delta": text}] if text else []
        return [*grown, {"type": f"{event}.done", **self._place, "input": text}, *super().closed(status)]

    def item(self, status: str) -> dict[str, Any]:
        """A custom_tool_call item."""
        text = custom_input(self.arguments) if self.arguments else ""
        return {"id": self.id, "type": "custom_tool_call", "status": status, **self._head, "input": text}


def custom_input(arguments: str) -> str:
    """The input in the arguments of a custom tool's call; the arguments themselves when they were cut."""
    try:
        return msgspec.json.decode(arguments, type=_CustomArguments).input
    except msgspec.DecodeError:
        return arguments


class _CustomArguments(msgspec.Struct):
    input: str
