"""Output items of /v1/responses: built piece by piece, with the events of each step."""

from abc import abstractmethod
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from server.api.openai.response_answer import (
    ItemStatus,
    OutputCall,
    OutputCustomCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputThought,
    ResponseEvent,
)
from server.generation.answers import TokenLogprobEntry
from server.generation.argument_reading import CallArguments
from server.generation.framing import Block
from server.generation.parsing import Thought


class OpenItem(Block[ResponseEvent]):
    """One item that is being built. `number`: 32 hexadecimal digits of its own."""

    prefix = ""

    def __init__(self, index: int, number: str) -> None:
        super().__init__(index)
        self.id = f"{self.prefix}_{number}"

    @abstractmethod
    def item(self, status: ItemStatus) -> OutputItem:
        """The item as it is now."""

    def opened(self) -> list[ResponseEvent]:
        item = self.item("in_progress")
        return [ResponseEvent("response.output_item.added", output_index=self._index, item=item)]

    def grow(self, text: str) -> list[ResponseEvent]:
        self._pieces.append(text)
        return []

    def closed(self, status: ItemStatus) -> list[ResponseEvent]:
        return [ResponseEvent("response.output_item.done", output_index=self._index, item=self.item(status))]

    def _event(self, name: str) -> ResponseEvent:
        return ResponseEvent(f"response.{name}", item_id=self.id, output_index=self._index)


class TextItem(OpenItem):
    """An item with one part of text in it: a message, or reasoning."""

    event = ""

    def grow(self, text: str) -> list[ResponseEvent]:
        super().grow(text)
        event = self._event(f"{self.event}.delta")
        event.delta = text
        return [event]

    def opened(self) -> list[ResponseEvent]:
        """The item without a part, then the part, empty."""
        first = super().opened()
        assert isinstance(first[0].item, OutputReasoning | OutputMessage)
        first[0].item.content = []
        return [*first, self._part_event("added")]

    def closed(self, status: ItemStatus) -> list[ResponseEvent]:
        done = self._event(f"{self.event}.done")
        done.text = self.text
        return [done, self._part_event("done"), *super().closed(status)]

    @abstractmethod
    def part(self) -> OutputText | OutputThought:
        """The part as it is now."""

    def _event(self, name: str) -> ResponseEvent:
        event = super()._event(name)
        event.content_index = 0
        return event

    def _part_event(self, name: str) -> ResponseEvent:
        event = self._event(f"content_part.{name}")
        event.part = self.part()
        return event


class OpenReasoning(TextItem):
    """What the model thinks; the raw text is the item's content, nothing is summarised or encrypted."""

    prefix, event = "rs", "reasoning_text"
    grows_by = Thought

    def part(self) -> OutputThought:
        return OutputThought(text=self.text)

    def item(self, status: ItemStatus) -> OutputReasoning:
        return OutputReasoning(id=self.id, content=[self.part()], status=status)


class OpenMessage(TextItem):
    """What the model says, and the log-probabilities of its tokens where they were asked for."""

    prefix, event = "msg", "output_text"

    def __init__(self, index: int, number: str) -> None:
        super().__init__(index, number)
        self._logprobs: list[TokenLogprobEntry] = []

    def add_logprobs(self, entries: Sequence[TokenLogprobEntry]) -> None:
        """Tokens of what was said last, or that ended the text without being text."""
        self._logprobs += entries

    def closed(self, status: ItemStatus) -> list[ResponseEvent]:
        events = super().closed(status)
        events[0].logprobs = list(self._logprobs)
        return events

    def part(self) -> OutputText:
        return OutputText(text=self.text, logprobs=list(self._logprobs))

    def item(self, status: ItemStatus) -> OutputMessage:
        return OutputMessage(id=self.id, status=status, content=[self.part()])


class OpenCall(OpenItem):
    """A function call, whose arguments grow as text. `namespace` None = what is called is in none."""

    prefix = "fc"
    grows_by = CallArguments

    def __init__(self, index: int, number: str, name: str, namespace: str | None = None) -> None:
        super().__init__(index, number)
        self._name, self._namespace = name, UNSET if namespace is None else namespace
        self._call_id = f"call_{number[:24]}"

    def grow(self, text: str) -> list[ResponseEvent]:
        super().grow(text)
        event = self._event("function_call_arguments.delta")
        event.delta = text
        return [event]

    def closed(self, status: ItemStatus) -> list[ResponseEvent]:
        event = self._event("function_call_arguments.done")
        event.name, event.arguments = self._name, self.text
        return [event, *super().closed(status)]

    def item(self, status: ItemStatus) -> OutputItem:
        name, namespace = self._name, self._namespace
        return OutputCall(
            id=self.id, status=status, call_id=self._call_id, name=name, namespace=namespace, arguments=self.text
        )


class OpenCustomCall(OpenCall):
    """A call of a custom tool. Its input is known when its arguments are whole: the model writes a function's call."""

    prefix = "ctc"

    def grow(self, text: str) -> list[ResponseEvent]:
        self._pieces.append(text)
        return []

    def closed(self, status: ItemStatus) -> list[ResponseEvent]:
        text = custom_input(self.text)
        grown, done = self._event("custom_tool_call_input.delta"), self._event("custom_tool_call_input.done")
        grown.delta, done.input = text, text
        return [*([grown] if text else []), done, *OpenItem.closed(self, status)]

    def item(self, status: ItemStatus) -> OutputItem:
        text = custom_input(self.text) if self.text else ""
        name, namespace = self._name, self._namespace
        return OutputCustomCall(
            id=self.id, status=status, call_id=self._call_id, name=name, namespace=namespace, input=text
        )


def custom_input(arguments: str) -> str:
    """The input in the arguments of a custom tool's call; the arguments themselves when they were cut."""
    try:
        return msgspec.json.decode(arguments, type=_CustomArguments).input
    except msgspec.DecodeError:
        return arguments


class _CustomArguments(msgspec.Struct):
    input: str
