"""POST /v1/chat/completions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from engine.grammar.tool_formats import ToolFormat
from engine.request import Delta, FinishReason, TextLogprob
from server.http.body import BoundedRoute
from server.http.sse import PlainEnding
from server.protocol.chat_answer import ChatChunk, ChatCompletion
from server.protocol.chat_request import ChatRequest
from server.protocol.openapi_responses import answers
from server.requests.messages import template_messages
from server.requests.params import chat_decoding, chat_tools, check_model
from server.requests.structured_output import chat_form
from server.service import answer, service_of, until_left
from server.writers.logprobs import chat_entries
from server.writers.merged import ChoiceDelta
from server.writers.reasoning import ReasoningSplitter, Thought, budgeted, template_options, thinking_after
from server.writers.tool_calls import CallArguments, CallBegin, CallSplitter, Piece
from server.writers.usage import FINISH_NAMES, Envelope, StreamUsage, TokenCount

router = APIRouter(route_class=BoundedRoute)
Part = Thought | Piece


@router.post("/v1/chat/completions", response_model=None, responses=answers(ChatCompletion, ChatChunk))
async def create_chat(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    service = service_of(request)
    model = check_model(body.model, service.engine.info, service.settings)
    decoding = chat_decoding(body, service.engine, service.settings)
    service.admit(decoding.choices)
    tools = chat_tools(body, service.takes_tools)
    form = chat_form(body, tools is not None, service.tool_format)
    messages = template_messages(body.messages)
    options = template_options(body.chat_template_kwargs, body.reasoning_effort, body.add_generation_prompt)
    prompt = await until_left(request, service.engine.chat_prompt(messages, tools, options, decoding.keep))
    thinking = thinking_after(prompt, service.engine)
    budget = budgeted(body.thinking_token_budget, thinking, service.engine, "thinking_token_budget")
    decoding = await until_left(request, service.constrained(replace(decoding, reasoning=budget), form, thinking))
    envelope = replace(service.envelope("chatcmpl", model), names_tier=body.service_tier is not None)
    stream = service.launch(envelope, [prompt], decoding, "messages")
    count = TokenCount(stream.prompt_tokens, decoding.choices)
    usage = StreamUsage(count, body.stream_options)
    calls = service.tool_format if tools is not None else None
    choices = [ChatChoice(calls, thinking.splitter()) for _ in range(decoding.choices)]
    writer = ChatWriter(envelope, count, choices, decoding.logprobs, usage)
    return await answer(request, stream, writer, bool(body.stream))


class ChatWriter(PlainEnding):
    """Chunks and answers of one chat."""

    def __init__(
        self,
        envelope: Envelope,
        count: TokenCount,
        choices: "Sequence[ChatChoice]",
        alternatives: int | None,
        usage: StreamUsage,
    ) -> None:
        self._envelope = envelope
        self._count = count
        self._alternatives = alternatives
        self._usage = usage
        self._choices = choices
        self._has_roles = False

    @property
    def finished(self) -> bool:
        """True when every choice has finished."""
        return self._count.finished

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[dict[str, Any]]:
        """Role first, then content and calls, then the finish. Logprobs of tokens without text go with what follows."""
        chunks = []
        for number, delta in deltas:
            choice = self._choices[number]
            self._count.add(number, delta)
            if not self._has_roles:  # of all choices in order: openai-python's helper needs choice 0 to come first
                self._has_roles = True
                role = {"role": "assistant", "content": ""}
                chunks += [self._chunk(each, role) for each in range(len(self._choices))]
            parts = choice.take(delta)
            self._count.add_reasoning(choice.new_reasoning_tokens())
            for part in parts:
                chunks.append(self._chunk(number, _delta(part), self._take_logprobs(choice, only_if_any=True)))
            if delta.finish is not None:
                logprobs = self._take_logprobs(choice, only_if_any=True)
                chunks.append(self._chunk(number, {}, logprobs, choice.finish_name(delta.finish)))
        return chunks

    def last_chunks(self) -> list[dict[str, Any]]:
        """The usage chunk, if it was asked for."""
        return self._usage.last(self._envelope.envelope("chat.completion.chunk", []))

    def take(self, deltas: Sequence[ChoiceDelta]) -> None:
        """Keep deltas for `answer`."""
        for number, delta in deltas:
            self._count.add(number, delta)
            choice = self._choices[number]
            choice.parts += choice.take(delta)
            self._count.add_reasoning(choice.new_reasoning_tokens())
            if delta.finish is not None:
                choice.finish = choice.finish_name(delta.finish)

    def answer(self) -> dict[str, Any]:
        """The chat.completion object."""
        choices = [
            {
                "index": number,
                "message": choice.message(),
                "logprobs": self._take_logprobs(choice),
                "finish_reason": choice.finish,
            }
            for number, choice in enumerate(self._choices)
        ]
        return self._envelope.envelope("chat.completion", choices) | {"usage": self._count.usage()}

    def _take_logprobs(self, choice: "ChatChoice", only_if_any: bool = False) -> dict[str, Any] | None:
        if self._alternatives is None or (only_if_any and not choice.logprobs):
            return None
        entries = chat_entries(choice.logprobs, self._alternatives)
        choice.logprobs = []
        return {"content": entries, "refusal": None}

    def _chunk(
        self, number: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        part = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._usage.on(self._envelope.envelope("chat.completion.chunk", [part]))


class ChatChoice:
    """What one choice has said so far. `calls` is the form of calls in the text, None when there are none."""

    def __init__(self, calls: ToolFormat | None, reasoning: ReasoningSplitter | None = None) -> None:
        self.parts: list[Part] = []
        self.logprobs: list[TextLogprob] = []
        self.finish: str | None = None
        self._splitter = CallSplitter(calls) if calls is not None else None
        self._reasoning = reasoning
        self._counted = 0

    def take(self, delta: Delta) -> list[Part]:
        """The reasoning, text and calls that are certain with this delta."""
        self.logprobs += delta.logprobs
        pieces = [delta.text] if self._reasoning is None else self._reasoning.feed(delta)
        if self._splitter is None:
            return [piece for piece in pieces if piece]
        parts: list[Part] = [piece for piece in pieces if isinstance(piece, Thought)]
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        return parts + self._splitter.feed(text, delta.finish is not None)

    def new_reasoning_tokens(self) -> int:
        """Tokens that turned out to be reasoning since this was last asked."""
        before, self._counted = self._counted, 0 if self._reasoning is None else self._reasoning.tokens
        return self._counted - before

    def message(self) -> dict[str, Any]:
        """The whole message; content is null when there are only calls."""
        text = "".join(part for part in self.parts if isinstance(part, str))
        calls = [
            {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": self._arguments(part)}}
            for part in self.parts
            if isinstance(part, CallBegin)
        ]
        thoughts = "".join(part.text for part in self.parts if isinstance(part, Thought))
        message: dict[str, Any] = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
        if thoughts:
            message["reasoning_content"] = thoughts
        return message | {"tool_calls": calls} if calls else message

    def _arguments(self, call: CallBegin) -> str:
        pieces = (part for part in self.parts if isinstance(part, CallArguments) and part.index == call.index)
        return "".join(piece.text for piece in pieces)

    def finish_name(self, finish: FinishReason) -> str:
        """OpenAI's finish_reason; a text that was cut stays 'length' even after a call."""
        has_calls = self._splitter is not None and self._splitter.has_calls
        name = FINISH_NAMES[finish]
        return "tool_calls" if has_calls and name == "stop" else name


def _delta(part: Part) -> dict[str, Any]:
    """Streamed form of one part: a call opens with its id and name, its arguments follow."""
    match part:
        case Thought(text):
            return {"reasoning_content": text}
        case CallBegin(index, identity, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": identity, "type": "function", "function": function}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case str():
            return {"content": part}
