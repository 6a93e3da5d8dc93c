"""The response object of /v1/responses and the events of its stream, in the order SDKs depend on."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from copy import copy
from types import MappingProxyType

from msgspec.structs import replace

from engine.errors import HexserveError
from engine.request import Delta, FinishReason
from server.api.openai.response_answer import (
    FailureCode,
    IncompleteDetails,
    InputDetails,
    ItemStatus,
    OutputItem,
    ResponseAnswer,
    ResponseChosenFunction,
    ResponseCustomTool,
    ResponseEvent,
    ResponseFailure,
    ResponseFunction,
    ResponseNamespace,
    ResponsePlainFormat,
    ResponseReasoning,
    ResponseSchemaFormat,
    ResponseState,
    ResponseText,
    ResponseUsage,
    ShownTool,
)
from server.api.openai.response_input import Storing
from server.api.openai.response_items import OpenCall, OpenCustomCall, OpenItem, OpenMessage, OpenReasoning
from server.api.openai.response_request import (
    CalledAs,
    CustomTool,
    ResponseFunctionTool,
    ResponsesRequest,
    ResponseTool,
    TextSchemaFormat,
    TextSettings,
)
from server.generation.answers import Envelope, TokenCount, TokenLogprobEntry
from server.generation.call_reading import CallBegin
from server.generation.framing import BlockWriter
from server.generation.params import GenerationParams
from server.generation.parsing import ParsedChoice, Part, Thought
from server.generation.stream import ChoiceDelta
from server.http.errors import from_engine

NO_NAMES: Mapping[str, CalledAs] = MappingProxyType({})


class ResponseWriter(BlockWriter[ResponseEvent, OpenItem]):
    """Owns the output of one response; streamed or not, the same events make it."""

    def __init__(
        self,
        response: ResponseAnswer,
        count: TokenCount,
        choice: ParsedChoice,
        alternatives: int | None,
        called_as: Mapping[str, CalledAs] = NO_NAMES,
        known_events: int = 0,
    ) -> None:
        """response: as `response_object` begins it. called_as: tools that the model knows by another name.

        known_events: how many of the events a client has got from another server.
        """
        super().__init__(count, choice)
        self._alternatives = alternatives
        self._called_as = called_as
        self._known_events = known_events
        self._response = response
        self._output: list[OutputItem] = []
        self._number = 0
        self._has_begun = False
        self._finish: FinishReason | None = None

    @property
    def response(self) -> ResponseAnswer:
        return replace(self._response, output=list(self._output))

    def queued(self) -> list[ResponseEvent]:
        self._response.status = "queued"
        return [self._lifecycle("created"), self._lifecycle("queued")]

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[ResponseEvent]:
        events = [*self._begin(), *(self._numbered(event) for event in self._grow(deltas))]
        if self._known_events and deltas and all(each.delta.is_known for each in deltas):
            self._number = self._known_events  # the other server wrote them in more or fewer pieces
        return events

    @property
    def events(self) -> int:
        """Events so far, those of another server counted in."""
        return self._number

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
        code: FailureCode = "server_error" if wire.status >= 500 else "invalid_prompt"
        return self._broken_off("failed", ResponseFailure(code=code, message=wire.message))

    def cancelled(self) -> list[ResponseEvent]:
        return self._broken_off("cancelled", None)

    def _broken_off(self, status: ResponseState, reason: ResponseFailure | None) -> list[ResponseEvent]:
        events = [*self._begin(), *(self._numbered(event) for event in self._close("incomplete"))]
        self._response.status, self._response.error, self._response.output = status, reason, self._output
        return [*events, self._lifecycle(status)]

    def _begin(self) -> list[ResponseEvent]:
        if self._has_begun:
            return []
        self._has_begun = True
        self._response.status = "in_progress"
        created = [] if self._number else [self._lifecycle("created")]
        return [*created, self._lifecycle("in_progress")]

    def answer(self) -> ResponseAnswer:
        self._close()
        self._complete()
        return self._response

    def _end(self, delta: Delta) -> None:
        self._finish = delta.finish

    def _say(self, part: Part) -> list[ResponseEvent]:
        logprobs, before = self._taken_logprobs(), self._open  # only what is said shows them here
        events = super()._say(part)
        if isinstance(self._open, OpenMessage) and isinstance(part, str):
            logprobs = logprobs if self._open is before else _of_text(logprobs, part)
            self._open.add_logprobs(logprobs)
            events[-1].logprobs = logprobs
        return events

    def _taken_logprobs(self) -> list[TokenLogprobEntry]:
        entries = self._choice.taken_logprobs(self._alternatives or 0)
        return [] if self._alternatives is None else entries

    def _block(self, part: Part) -> OpenItem:
        """Its number follows from the response's own, so that another server which goes on with it has the same."""
        index = self._place
        number = hashlib.sha256(f"{self._response.id} {index}".encode()).hexdigest()[:32]
        if isinstance(part, Thought):
            return OpenReasoning(index, number)
        if isinstance(part, str):
            return OpenMessage(index, number)
        assert isinstance(part, CallBegin), "arguments follow the begin of their call"
        called = self._called_as.get(part.name, CalledAs(part.name))
        kind = OpenCustomCall if called.is_custom else OpenCall
        return kind(index, number, called.name, called.namespace)

    def _close(self, status: ItemStatus | None = None) -> list[ResponseEvent]:
        """End the open item; one that max_output_tokens cut is incomplete."""
        item, self._open = self._open, None
        if item is None:
            return []
        if isinstance(item, OpenMessage) and self._count.finished:
            item.add_logprobs(self._taken_logprobs())
        status = status or ("incomplete" if self._finish is FinishReason.LENGTH else "completed")
        self._output.append(item.item(status))
        self._done += 1
        return item.closed(status)

    def _complete(self) -> None:
        is_cut = self._finish is FinishReason.LENGTH
        usage, response = self._count.usage(), self._response
        response.status = "incomplete" if is_cut else "completed"
        response.completed_at = None if is_cut else int(time.time())
        response.incomplete_details = IncompleteDetails(reason="max_output_tokens") if is_cut else None
        response.output = self._output
        response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=usage.completion_tokens_details,
            total_tokens=usage.total_tokens,
        )

    def _lifecycle(self, name: str) -> ResponseEvent:
        return self._numbered(ResponseEvent(f"response.{name}", response=copy(self._response)))

    def _numbered(self, event: ResponseEvent) -> ResponseEvent:
        event.sequence_number = self._number
        self._number += 1
        return event


def response_object(
    envelope: Envelope, body: ResponsesRequest, storing: Storing, params: GenerationParams
) -> ResponseAnswer:
    """As it begins. params: how it is generated."""
    text, reasoning, choice = body.text, body.reasoning, body.tool_choice or "auto"
    return ResponseAnswer(
        id=envelope.id,
        created_at=envelope.created,
        model=envelope.model,
        previous_response_id=storing.previous,
        instructions=body.instructions,
        tools=[_tool(tool) for tool in body.tools or []],
        tool_choice=choice if isinstance(choice, str) else ResponseChosenFunction(type=choice.type, name=choice.name),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        text=ResponseText(format=_format(text), verbosity=(text and text.verbosity) or "medium"),
        top_p=params.top_p if body.top_p is None else body.top_p,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        top_logprobs=body.top_logprobs or 0,
        temperature=params.temperature,
        reasoning=ResponseReasoning() if reasoning is None else ResponseReasoning(reasoning.effort, reasoning.summary),
        user=body.user,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        store=storing.is_kept,
        background=storing.is_background,
        metadata=body.metadata or {},
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
    )


def _tool(tool: ResponseTool) -> ShownTool:
    """A tool as it was given; of a function every key."""
    given = tool.model_dump(exclude_none=True)
    match tool:
        case ResponseFunctionTool():
            return ResponseFunction(**given)
        case CustomTool():
            return ResponseCustomTool(**given)
        case _:
            return ResponseNamespace(**given)


def _format(text: TextSettings | None) -> ResponsePlainFormat | ResponseSchemaFormat:
    """The form of the text as it was asked for, every key there."""
    form = text.format if text is not None else None
    if isinstance(form, TextSchemaFormat):
        return ResponseSchemaFormat(
            name=form.name, definition=form.definition, description=form.description, strict=bool(form.strict)
        )
    return ResponsePlainFormat() if form is None else ResponsePlainFormat(type=form.type)


def _of_text(entries: list[TokenLogprobEntry], text: str) -> list[TokenLogprobEntry]:
    """The last ones, of which a text is made: before a message stand marks that nobody is shown."""
    first, left = len(entries), len(text.encode())
    while first and left > 0:
        first -= 1
        left -= len(entries[first].bytes or entries[first].token.encode())
    return entries[first:]
