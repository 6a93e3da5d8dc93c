"""The response object of /v1/responses and the events of its stream, in the order SDKs depend on."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from engine.errors import HexserveError
from engine.request import FinishReason
from server.http.errors import from_engine
from server.http.merged_stream import ChoiceDelta
from server.protocol.responses_request import ResponsesRequest, TextSchemaFormat, TextSettings
from server.protocol.responses_tools import CalledAs, NamedFunction, ResponseFunctionTool, ResponseTool
from server.stored.storing import Storing
from server.writers.parsed_choice import ParsedChoice, Part
from server.writers.reasoning import Thought
from server.writers.responses_items import (
    CalledOutput,
    CallOutput,
    CustomCallOutput,
    Event,
    MessageOutput,
    OutputItem,
    ReasoningOutput,
)
from server.writers.tool_calls import CallBegin
from server.writers.usage import Envelope, TokenCount

Item = TypeVar("Item", bound=OutputItem)
NO_NAMES: Mapping[str, CalledAs] = MappingProxyType({})


class ResponseWriter:
    """Owns the output of one response; streamed or not, the same events make it."""

    ending = b""  # the last event is the end; there is no [DONE]

    def __init__(
        self,
        response: dict[str, Any],
        count: TokenCount,
        choice: ParsedChoice,
        alternatives: int | None,
        called_as: Mapping[str, CalledAs] = NO_NAMES,
        known_events: int = 0,
    ) -> None:
        """response: as `response_object` begins it. called_as: tools that the model knows by another name.

        known_events: how many of the events a client has got from another server.
        """
        self._count = count
        self._choice = choice
        self._alternatives = alternatives
        self._called_as = called_as
        self._known_events = known_events
        self._response = response
        self._open: OutputItem | None = None
        self._output: list[dict[str, Any]] = []
        self._number = 0
        self._has_begun = False
        self._finish: FinishReason | None = None

    @property
    def finished(self) -> bool:
        """True when the model has said everything."""
        return self._count.finished

    @property
    def response(self) -> dict[str, Any]:
        """The response object as it is now, with the items that are done."""
        return self._response | {"output": list(self._output)}

    def queued(self) -> list[Event]:
        """The events of a response that waits in the background."""
        self._response["status"] = "queued"
        return [self._lifecycle("created"), self._lifecycle("queued")]

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[Event]:
        """The events of these deltas."""
        events = [*self._begin(), *(self._numbered(event) for event in self._grow(deltas))]
        if self._known_events and deltas and all(each.delta.is_known for each in deltas):
            self._number = self._known_events  # the other server wrote them in more or fewer pieces
        return events

    @property
    def events(self) -> int:
        """Events so far, those of another server counted in."""
        return self._number

    def last_chunks(self) -> list[Event]:
        """The end of the last item, then of the response."""
        return [*self.closing(), self.ended()]

    def closing(self) -> list[Event]:
        """The end of the last item; the response is complete then."""
        events = [self._numbered(event) for event in self._close()]
        self._complete()
        return events

    def ended(self) -> Event:
        """The last event, named after what the response has come to."""
        return self._lifecycle(self._response["status"])

    def failure(self, error: HexserveError) -> list[Event]:
        """What is said when the response cannot go on: its items so far and why."""
        wire = from_engine(error)
        reason = {"code": "server_error" if wire.status >= 500 else "invalid_prompt", "message": wire.message}
        return self._broken_off("failed", reason)

    def cancelled(self) -> list[Event]:
        """What is said when the caller does not want the rest: its items so far."""
        return self._broken_off("cancelled", None)

    def _broken_off(self, status: str, reason: dict[str, Any] | None) -> list[Event]:
        events = [*self._begin(), *(self._numbered(event) for event in self._close("incomplete"))]
        self._response |= {"status": status, "error": reason, "output": self._output}
        return [*events, self._lifecycle(status)]

    def _begin(self) -> list[Event]:
        if self._has_begun:
            return []
        self._has_begun = True
        self._response["status"] = "in_progress"
        created = [] if self._number else [self._lifecycle("created")]
        return [*created, self._lifecycle("in_progress")]

    def take(self, deltas: Sequence[ChoiceDelta]) -> None:
        """Keep deltas for `answer`."""
        for _ in self._grow(deltas):
            pass

    def answer(self) -> dict[str, Any]:
        """The response object."""
        self._close()
        self._complete()
        return self._response

    def _grow(self, deltas: Sequence[ChoiceDelta]) -> list[Event]:
        events: list[Event] = []
        for number, delta in deltas:
            self._count.add(number, delta)
            for part in self._choice.take(delta):
                events += self._say(part)
            self._count.add_reasoning(self._choice.new_reasoning_tokens())
            if delta.finish is not None:
                self._finish = delta.finish
        return events

    def _say(self, part: Part) -> list[Event]:
        logprobs, self._choice.logprobs = self._choice.logprobs, []  # only what is said shows them here
        events: list[Event] = []
        if isinstance(part, Thought):
            thoughts = self._open
            if not isinstance(thoughts, ReasoningOutput):
                events, thoughts = self._opened(ReasoningOutput(*self._place()))
            return events + thoughts.grow(part.text)
        if isinstance(part, str):
            message = self._open
            if not isinstance(message, MessageOutput):
                events, message = self._opened(MessageOutput(*self._place(), self._alternatives))
            return events + message.say(part, logprobs)
        if isinstance(part, CallBegin):
            called = self._called_as.get(part.name, CalledAs(part.name))
            kind = CustomCallOutput if called.is_custom else CallOutput
            return self._opened(kind(*self._place(), called.name, called.namespace))[0]
        assert isinstance(self._open, CalledOutput), "arguments follow the begin of their call"
        return self._open.grow(part.text)

    def _place(self) -> tuple[int, str]:
        """Where a new item goes, behind those that are done and the open one, and its number.

        The number follows from the response's own, so that another server which goes on with it has the same.
        """
        index = len(self._output) + (self._open is not None)
        return index, hashlib.sha256(f"{self._response['id']} {index}".encode()).hexdigest()[:32]

    def _opened(self, item: Item) -> tuple[list[Event], Item]:
        """Make an item the open one; the one before it is done."""
        events = self._close("completed")
        self._open = item
        return events + item.opened(), item

    def _close(self, status: str | None = None) -> list[Event]:
        """End the open item; one that max_output_tokens cut is incomplete."""
        item, self._open = self._open, None
        if item is None:
            return []
        if isinstance(item, MessageOutput) and self._count.finished:
            item.add_logprobs(self._choice.logprobs)
            self._choice.logprobs = []
        status = status or ("incomplete" if self._finish is FinishReason.LENGTH else "completed")
        self._output.append(item.item(status))
        return item.closed(status)

    def _complete(self) -> None:
        is_cut = self._finish is FinishReason.LENGTH
        usage = self._count.usage()
        self._response |= {
            "status": "incomplete" if is_cut else "completed",
            "completed_at": None if is_cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._output,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cache_write_tokens": 0, **usage["prompt_tokens_details"]},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": usage["completion_tokens_details"],
                "total_tokens": usage["total_tokens"],
            },
        }

    def _lifecycle(self, name: str) -> Event:
        return self._numbered({"type": f"response.{name}", "response": dict(self._response)})

    def _numbered(self, event: Event) -> Event:
        self._number += 1
        return event | {"sequence_number": self._number - 1}


def response_object(envelope: Envelope, body: ResponsesRequest, storing: Storing) -> dict[str, Any]:
    """All 32 keys, before anything was generated."""
    text, reasoning, choice = body.text, body.reasoning, body.tool_choice or "auto"
    return {
        "id": envelope.id,
        "object": "response",
        "created_at": envelope.created,
        "completed_at": None,
        "status": "in_progress",
        "incomplete_details": None,
        "model": envelope.model,
        "previous_response_id": storing.previous,
        "instructions": body.instructions,
        "output": [],
        "error": None,
        "tools": [_tool(tool) for tool in body.tools or []],
        "tool_choice": body.tool_choice.model_dump() if isinstance(body.tool_choice, NamedFunction) else choice,
        "truncation": "disabled",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "text": {"format": _format(text), "verbosity": (text and text.verbosity) or "medium"},
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "top_logprobs": body.top_logprobs or 0,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": reasoning and reasoning.summary},
        "user": body.user,
        "usage": None,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "store": storing.is_kept,
        "background": storing.is_background,
        "service_tier": "default",
        "metadata": body.metadata or {},
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }


def _tool(tool: ResponseTool) -> dict[str, Any]:
    """A tool as it was given; of a function every key."""
    given = tool.model_dump(exclude_none=True)
    if isinstance(tool, ResponseFunctionTool):
        return {"type": "function", "strict": False, "description": None, "parameters": None} | given
    return given


def _format(text: TextSettings | None) -> dict[str, Any]:
    """The form of the text as it was asked for, every key there."""
    form = text.format if text is not None else None
    if isinstance(form, TextSchemaFormat):
        return form.model_dump(by_alias=True) | {"strict": bool(form.strict)}
    return {"type": "text" if form is None else form.type}
