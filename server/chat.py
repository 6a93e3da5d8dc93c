"""POST /v1/chat/completions."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from engine.request import TextLogprob
from server.body import BoundedRoute
from server.chat_messages import template_messages
from server.logprobs import chat_entries
from server.merged import Arrival
from server.params import chat_decoding, check_model
from server.service import answer, service_of, until_left
from server.usage import FINISH_NAMES, Head, TokenCount
from server.wire import ChatRequest
from server.wire_answers import ChatChunk, ChatCompletion, answers

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/chat/completions", response_model=None, responses=answers(ChatCompletion, ChatChunk))
async def create_chat(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    service = service_of(request)
    model = check_model(body.model, service.engine.info, service.settings)
    decoding = chat_decoding(body, service.engine, service.settings)
    service.admit(decoding.choices)
    messages = template_messages(body.messages)
    prompt = await until_left(request, service.engine.chat_prompt(messages))
    head = service.head("chatcmpl", model)
    stream = service.launch(head, [prompt], decoding, "messages")
    count = TokenCount(stream.prompt_tokens, decoding.choices)
    includes_usage = bool(body.stream_options and body.stream_options.include_usage)
    writer = ChatWriter(head, count, decoding.choices, decoding.logprobs, includes_usage)
    return await answer(request, stream, writer, bool(body.stream))


class ChatWriter:
    """Chunks and answers of one chat. `alternatives` None = no logprobs."""

    def __init__(
        self, head: Head, count: TokenCount, choices: int, alternatives: int | None, includes_usage: bool
    ) -> None:
        self._head = head
        self._count = count
        self._alternatives = alternatives
        self._includes_usage = includes_usage
        self._choices = [_ChatChoice() for _ in range(choices)]

    @property
    def finished(self) -> bool:
        """True when every choice has finished."""
        return self._count.finished

    def chunks(self, arrivals: Sequence[Arrival]) -> list[dict[str, Any]]:
        """Role first, then content, then the finish. Tokens without text yet lend their logprobs to the next chunk."""
        chunks = []
        for number, delta in arrivals:
            choice = self._choices[number]
            self._count.add(number, delta)
            choice.logprobs += delta.logprobs
            if not choice.has_role:
                choice.has_role = True
                chunks.append(self._chunk(number, {"role": "assistant", "content": ""}))
            if delta.text:
                chunks.append(self._chunk(number, {"content": delta.text}, self._take_logprobs(choice)))
            if delta.finish is not None:
                logprobs = self._take_logprobs(choice) if choice.logprobs else None
                chunks.append(self._chunk(number, {}, logprobs, FINISH_NAMES[delta.finish]))
        return chunks

    def last_chunks(self) -> list[dict[str, Any]]:
        """The usage chunk, if it was asked for."""
        if not self._includes_usage:
            return []
        return [self._head.envelope("chat.completion.chunk", []) | {"usage": self._count.usage()}]

    def take(self, arrivals: Sequence[Arrival]) -> None:
        """Keep arrivals for `answer`."""
        for number, delta in arrivals:
            choice = self._choices[number]
            self._count.add(number, delta)
            choice.logprobs += delta.logprobs
            choice.texts.append(delta.text)
            if delta.finish is not None:
                choice.finish = FINISH_NAMES[delta.finish]

    def answer(self) -> dict[str, Any]:
        """The chat.completion object."""
        choices = [
            {
                "index": number,
                "message": {"role": "assistant", "content": "".join(choice.texts), "refusal": None},
                "logprobs": self._take_logprobs(choice),
                "finish_reason": choice.finish,
            }
            for number, choice in enumerate(self._choices)
        ]
        return self._head.envelope("chat.completion", choices) | {"usage": self._count.usage()}

    def _take_logprobs(self, choice: "_ChatChoice") -> dict[str, Any] | None:
        if self._alternatives is None:
            return None
        entries = chat_entries(choice.logprobs, self._alternatives)
        choice.logprobs = []
        return {"content": entries, "refusal": None}

    def _chunk(
        self, number: int, delta: dict[str, str], logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        part = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunk = self._head.envelope("chat.completion.chunk", [part])
        return chunk | {"usage": None} if self._includes_usage else chunk


class _ChatChoice:
    def __init__(self) -> None:
        self.has_role = False
        self.texts: list[str] = []
        self.logprobs: list[TextLogprob] = []
        self.finish: str | None = None
