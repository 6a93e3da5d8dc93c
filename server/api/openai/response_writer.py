"""The response object of /v1/responses and the events of its stream, item by item, in the order SDKs depend on."""

import hashlib
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from engine.errors import HexserveError
from engine.request import FinishReason
from server.api.openai import response_answer as said
from server.api.openai import response_request as given
from server.api.openai.response_answer import ItemStatus, OutputItem, ResponseAnswer, ResponseEvent
from server.api.openai.response_input import Storing
from server.generation.answers import Envelope, TokenLogprobEntry
from server.generation.argument_reading import CallArguments
from server.generation.call_reading import CallBegin
from server.generation.framing import Block, BlockWriter
from server.generation.params import GenerationParams
from server.generation.parsing import Part, Thought
from server.generation.stream import ChoiceDelta
from server.http.errors import from_engine


class OpenItem(Block[ResponseEvent]):
    """One item that is being built. `number`: 32 hexadecimal digits of its own. event: of more of its text."""

    prefix, event = "", ""
    content_index: int | UnsetType = UNSET

    def __init__(self, index: int, number: str) -> None:
        super().__init__(index)
        self.id = f"{self.prefix}_{number}"
        self.status: ItemStatus = "in_progress"

    @abstractmethod
    def ending(self) -> list[ResponseEvent]:
        """What is told of its whole text, before the item is done."""

    def opened(self) -> list[ResponseEvent]:
        return [ResponseEvent("response.output_item.added", output_index=self._index, item=self.made())]

    def grown(self, text: str) -> list[ResponseEvent]:
        return [self._event(f"{self.event}.delta", delta=text)]

    def closed(self) -> list[ResponseEvent]:
        done = ResponseEvent("response.output_item.done", output_index=self._index, item=self.made())
        return [*self.ending(), done]

    def _event(self, name: str, /, **fields: Any) -> ResponseEvent:
        at, content = self._index, self.content_index
        return ResponseEvent(f"response.{name}", item_id=self.id, output_index=at, content_index=content, **fields)


class TextItem(OpenItem):
    """An item with one part of text in it: a message, or reasoning."""

    content_index = 0

    @abstractmethod
    def part(self) -> said.OutputText | said.OutputThought:
        """The part as it is now."""

    def opened(self) -> list[ResponseEvent]:
        """The item without a part, then the part, empty."""
        [added] = super().opened()
        assert isinstance(added.item, said.OutputReasoning | said.OutputMessage)
        added.item.content = []
        return [added, self._event("content_part.added", part=self.part())]

    def ending(self) -> list[ResponseEvent]:
        return [self._event(f"{self.event}.done", text=self.text), self._event("content_part.done", part=self.part())]


class OpenReasoning(TextItem):
    """What the model thinks; the raw text is the item's content, nothing is summarised or encrypted."""

    prefix, event = "rs", "reasoning_text"
    grows_by = Thought

    def part(self) -> said.OutputThought:
        return said.OutputThought(text=self.text)

    def made(self) -> OutputItem:
        return said.OutputReasoning(id=self.id, content=[self.part()], status=self.status)


class OpenMessage(TextItem):
    """What the model says. logprobs: of its tokens, where they were asked for; also of those that ended the text."""

    prefix, event = "msg", "output_text"

    def __init__(self, index: int, number: str) -> None:
        super().__init__(index, number)
        self.logprobs: list[TokenLogprobEntry] = []

    def ending(self) -> list[ResponseEvent]:
        events = super().ending()
        events[0].logprobs = list(self.logprobs)
        return events

    def part(self) -> said.OutputText:
        return said.OutputText(text=self.text, logprobs=list(self.logprobs))

    def made(self) -> OutputItem:
        return said.OutputMessage(id=self.id, status=self.status, content=[self.part()])


class OpenCall(OpenItem):
    """A function call, whose arguments grow as text."""

    prefix, event = "fc", "function_call_arguments"
    grows_by = CallArguments

    def __init__(self, index: int, number: str, called: given.CalledAs) -> None:
        super().__init__(index, number)
        self._name, namespace = called.name, UNSET if called.namespace is None else called.namespace
        call_id = f"call_{number[:24]}"
        self._own: dict[str, Any] = {"id": self.id, "call_id": call_id, "name": called.name, "namespace": namespace}

    def ending(self) -> list[ResponseEvent]:
        return [self._event(f"{self.event}.done", name=self._name, arguments=self.text)]

    def made(self) -> OutputItem:
        return said.OutputCall(**self._own, status=self.status, arguments=self.text)


class OpenCustomCall(OpenCall):
    """A call of a custom tool. Its input is known when its arguments are whole: the model writes a function's call."""

    prefix, event = "ctc", "custom_tool_call_input"

    def grown(self, text: str) -> list[ResponseEvent]:
        return []

    def ending(self) -> list[ResponseEvent]:
        text = custom_input(self.text)
        return [*(super().grown(text) if text else []), self._event(f"{self.event}.done", input=text)]

    def made(self) -> OutputItem:
        text = custom_input(self.text) if self.text else ""
        return said.OutputCustomCall(**self._own, status=self.status, input=text)


class _CustomArguments(msgspec.Struct):
    input: str


def custom_input(arguments: str) -> str:
    """The input in the arguments of a custom tool's call; the arguments themselves when they were cut."""
    try:
        return msgspec.json.decode(arguments, type=_CustomArguments).input
    except msgspec.DecodeError:
        return arguments


@dataclass
class ResponseWriter(BlockWriter[ResponseEvent, OpenItem]):
    """Owns the output of one response; streamed or not, the same events make it. `events` has another server's too.

    _response: as `response_object` begins it. called_as: tools that the model knows by another name. known_events: how
    many of the events a client has got from another server.
    """

    _response: ResponseAnswer
    alternatives: int | None
    called_as: Mapping[str, given.CalledAs]
    known_events: int
    _has_begun: bool = field(default=False, init=False)

    @property
    def response(self) -> ResponseAnswer:
        return replace(self._response, output=list(self._closed))

    def queued(self) -> list[ResponseEvent]:
        self._response.status = "queued"
        return [self._lifecycle("created"), self._lifecycle("queued")]

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[ResponseEvent]:
        events = [*self._begin(), *(self._numbered(event) for event in self._grow(deltas))]
        if self.known_events and deltas and all(each.delta.is_known for each in deltas):
            self.events = self.known_events  # the other server wrote them in more or fewer pieces
        return events

    def last_chunks(self) -> list[ResponseEvent]:
        return [*self.closing(), self.ended()]

    def closing(self) -> list[ResponseEvent]:
        events = [self._numbered(event) for event in self._close()]
        self._complete()
        return events

    def ended(self) -> ResponseEvent:
        return self._lifecycle(self._response.status)

    def failure(self, error: HexserveError) -> list[ResponseEvent]:
        wire = from_engine(error)
        code: said.FailureCode = "server_error" if wire.status >= 500 else "invalid_prompt"
        return self._broken_off("failed", said.ResponseFailure(code=code, message=wire.message))

    def cancelled(self) -> list[ResponseEvent]:
        return self._broken_off("cancelled", None)

    def answer(self) -> ResponseAnswer:
        self.closing()
        return self._response

    def _broken_off(self, status: said.ResponseState, reason: said.ResponseFailure | None) -> list[ResponseEvent]:
        events = [*self._begin(), *(self._numbered(event) for event in self._close("incomplete"))]
        self._response.status, self._response.error, self._response.output = status, reason, self._closed
        return [*events, self._lifecycle(status)]

    def _begin(self) -> list[ResponseEvent]:
        if self._has_begun:
            return []
        self._has_begun = True
        self._response.status = "in_progress"
        created = [] if self.events else [self._lifecycle("created")]
        return [*created, self._lifecycle("in_progress")]

    def _say(self, part: Part) -> list[ResponseEvent]:
        logprobs, before = self._taken_logprobs(), self._open  # only what is said shows them here
        events = super()._say(part)
        if isinstance(self._open, OpenMessage) and isinstance(part, str):
            logprobs = logprobs if self._open is before else _of_text(logprobs, part)
            self._open.logprobs += logprobs
            events[-1].logprobs = logprobs
        return events

    def _taken_logprobs(self) -> list[TokenLogprobEntry]:
        entries = self.choice.taken_logprobs(self.alternatives or 0)
        return [] if self.alternatives is None else entries

    def _block(self, part: Part) -> OpenItem:
        """Its number follows from the response's own, so that another server which goes on with it has the same."""
        index = self._place
        number = hashlib.sha256(f"{self._response.id} {index}".encode()).hexdigest()[:32]
        if isinstance(part, Thought):
            return OpenReasoning(index, number)
        if isinstance(part, str):
            return OpenMessage(index, number)
        assert isinstance(part, CallBegin), "arguments follow the begin of their call"
        called = self.called_as.get(part.name, given.CalledAs(part.name))
        return (OpenCustomCall if called.is_custom else OpenCall)(index, number, called)

    def _close(self, status: ItemStatus | None = None) -> list[ResponseEvent]:
        """End the open item; one that max_output_tokens cut is incomplete."""
        if isinstance(self._open, OpenMessage) and self.count.finished:
            self._open.logprobs += self._taken_logprobs()
        if self._open is not None:
            self._open.status = status or ("incomplete" if self._is_cut else "completed")
        return super()._close()

    @property
    def _is_cut(self) -> bool:
        return self._last is not None and self._last.finish is FinishReason.LENGTH

    def _complete(self) -> None:
        usage, response = self.count.usage(), self._response
        response.status = "incomplete" if self._is_cut else "completed"
        response.completed_at = None if self._is_cut else int(time.time())
        response.incomplete_details = said.IncompleteDetails(reason="max_output_tokens") if self._is_cut else None
        response.output = self._closed
        response.usage = said.ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=said.InputDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=usage.completion_tokens_details,
            total_tokens=usage.total_tokens,
        )

    def _lifecycle(self, name: str) -> ResponseEvent:
        return self._numbered(ResponseEvent(f"response.{name}", response=copy(self._response)))

    def _numbered(self, event: ResponseEvent) -> ResponseEvent:
        event.sequence_number = self.events
        self.events += 1
        return event


def response_object(
    envelope: Envelope, body: given.ResponsesRequest, storing: Storing, params: GenerationParams
) -> ResponseAnswer:
    """As it begins. params: how it is generated."""
    text, reasoning = body.text or given.TextSettings(), body.reasoning or given.ReasoningSettings()
    choice = body.tool_choice or "auto"
    return ResponseAnswer(
        id=envelope.id,
        created_at=envelope.created,
        model=envelope.model,
        previous_response_id=storing.previous,
        instructions=body.instructions,
        tools=[_tool(tool) for tool in body.tools or []],
        tool_choice=choice if isinstance(choice, str) else said.ResponseChosenFunction(**choice.model_dump()),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        text=said.ResponseText(format=_format(text.format), verbosity=text.verbosity or "medium"),
        top_p=params.each.top_p if body.top_p is None else body.top_p,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        top_logprobs=body.top_logprobs or 0,
        temperature=params.each.temperature,
        reasoning=said.ResponseReasoning(reasoning.effort, reasoning.summary),
        user=body.user,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        store=storing.is_kept,
        background=storing.is_background,
        metadata=body.metadata or {},
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
    )


def _tool(tool: given.ResponseTool) -> said.ShownTool:
    """A tool as it was given; of a function every key."""
    kinds: dict[str, type[said.ShownTool]] = {
        "function": said.ResponseFunction,
        "custom": said.ResponseCustomTool,
        "namespace": said.ResponseNamespace,
    }
    return kinds[tool.type](**tool.model_dump(exclude_none=True))


def _format(form: given.TextFormats | None) -> said.ResponsePlainFormat | said.ResponseSchemaFormat:
    """The form of the text as it was asked for, every key there."""
    if isinstance(form, given.TextSchemaFormat):
        about: dict[str, Any] = {"name": form.name, "definition": form.definition, "description": form.description}
        return said.ResponseSchemaFormat(**about, strict=bool(form.strict))
    return said.ResponsePlainFormat() if form is None else said.ResponsePlainFormat(type=form.type)


def _of_text(entries: list[TokenLogprobEntry], text: str) -> list[TokenLogprobEntry]:
    """The last ones, of which a text is made: before a message stand marks that nobody is shown."""
    first, left = len(entries), len(text.encode())
    while first and left > 0:
        first -= 1
        left -= len(entries[first].bytes or entries[first].token.encode())
    return entries[first:]
