"""POST /v1/chat/completions: the chat.completion object and the chunks of its stream."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fastapi import APIRouter, Request, Response
from msgspec import UNSET, UnsetType

from server.api.body import BoundedRoute
from server.api.openapi import answers
from server.generation.answers import Envelope, Identified, StreamUsage, TokenCount, TokenLogprobEntry
from server.generation.argument_reading import CallArguments
from server.generation.call_reading import CallBegin
from server.generation.chat_request import ChatRequest
from server.generation.chat_template import template_messages, template_options
from server.generation.framing import PlainEnding
from server.generation.launch import answer, prepared_chat, take_model
from server.generation.params import check_generates
from server.generation.parsing import ChatFinish, ChatMessage, ParsedChoice, Part, Thought
from server.generation.stream import ChoiceDelta
from server.http.fields import Answer


class ChatLogprobs(Answer):
    content: list[TokenLogprobEntry]
    refusal: None = None


class ChatChoice(Answer):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish


class ChatCompletion(Identified, kw_only=True):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class FunctionDelta(Answer, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(Answer, kw_only=True):
    """What is new of call `index`; id, type and name come with its first piece."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChunkDelta(Answer):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Answer):
    index: int
    delta: ChunkDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None


class ChatChunk(Identified, kw_only=True):
    """One event of a streamed chat; `usage` is there only when stream_options.include_usage was asked."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]


@dataclass
class ChatWriter(PlainEnding):
    envelope: Envelope
    count: TokenCount
    choices: Sequence[ParsedChoice]
    alternatives: int | None  # None = no logprobs
    usage: StreamUsage
    has_roles: bool = False

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[ChatChunk]:
        """Role first, then content and calls, then the finish. Logprobs of tokens without text go with what follows."""
        chunks = []
        for number, delta in deltas:
            choice = self.choices[number]
            self.count.add(number, delta)
            if not self.has_roles:  # of all choices in order: openai-python's helper needs choice 0 to come first
                self.has_roles = True
                role = ChunkDelta(role="assistant", content="")
                chunks += [self._chunk(each, role) for each in range(len(self.choices))]
            parts = choice.take(delta)
            self.count.reasoning += choice.new_reasoning_tokens()
            chunks += [self._chunk(number, _delta(part), self._fresh_logprobs(choice)) for part in parts]
            if delta.finish is not None:
                chunks.append(self._chunk(number, ChunkDelta(), self._fresh_logprobs(choice), choice.finish))
        return chunks

    def last_chunks(self) -> list[ChatChunk]:
        return self.usage.last(self.envelope.around(ChatChunk, []))

    def answer(self) -> ChatCompletion:
        has_logprobs = self.alternatives is not None
        choices = []
        for number, choice in enumerate(self.choices):
            logprobs = ChatLogprobs(choice.entries) if has_logprobs else None
            choices.append(ChatChoice(number, choice.message(), logprobs, choice.finish or "stop"))
        return self.count.on(self.envelope.around(ChatCompletion, choices))

    def _fresh_logprobs(self, choice: ParsedChoice) -> ChatLogprobs | None:
        if self.alternatives is None or not choice.logprobs:
            return None
        return ChatLogprobs(choice.taken_logprobs(self.alternatives))

    def _chunk(
        self, number: int, delta: ChunkDelta, logprobs: ChatLogprobs | None = None, finish: ChatFinish | None = None
    ) -> ChatChunk:
        choice = ChatChunkChoice(number, delta, logprobs, finish)
        return self.usage.on(self.envelope.around(ChatChunk, [choice]))


def _delta(part: Part) -> ChunkDelta:
    """Streamed form of one part: a call opens with its id and name, its arguments follow."""
    match part:
        case Thought(text):
            return ChunkDelta(reasoning_content=text)
        case CallBegin(index, identity, name):
            function = FunctionDelta(name=name, arguments="")
            return ChunkDelta(tool_calls=[ToolCallDelta(index=index, id=identity, type="function", function=function)])
        case CallArguments(index, text):
            return ChunkDelta(tool_calls=[ToolCallDelta(index=index, function=FunctionDelta(arguments=text))])
        case str():
            return ChunkDelta(content=part)


router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/chat/completions", responses=answers(ChatCompletion, ChatChunk))
async def create_chat(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    service = await take_model(request, body.model, check_generates)
    options = template_options(body.chat_template_kwargs, body.reasoning_effort, body.add_generation_prompt)
    chat = await prepared_chat(request, service, body, lambda: template_messages(body.messages), options)
    envelope = replace(service.envelope("chatcmpl-"), names_tier=body.service_tier is not None)
    stream = service.launch(envelope, [chat.prompt], chat.params, "messages")
    count = TokenCount(stream.prompt_tokens, chat.params.choices, body.prediction is not None)
    usage = StreamUsage(count, body.stream_options)
    writer = ChatWriter(envelope, count, chat.parsed_choices(), chat.params.each.logprobs, usage)
    return await answer(request, stream, writer, bool(body.stream))
