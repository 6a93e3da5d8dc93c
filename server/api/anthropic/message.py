"""The message object and the events of its stream, in the order Anthropic's SDKs depend on."""

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from uuid import uuid4

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict
from pydantic import Field

from engine.errors import HexserveError
from engine.request import FinishReason
from server.api.anthropic.request import IDENTIFIER
from server.generation.answers import Envelope
from server.generation.argument_reading import CallArguments
from server.generation.call_reading import CallBegin
from server.generation.framing import Block, BlockWriter
from server.generation.growing_text import whole_object
from server.generation.parsing import Part, Thought
from server.generation.stream import ChoiceDelta
from server.http.errors import AnthropicErrorDetail, anthropic_error, from_engine
from server.http.fields import Answer

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class SaidText(Answer, kw_only=True):
    type: Literal["text"] = "text"
    text: str


class SaidThinking(Answer, kw_only=True):
    """What the model thought; `thinking` is empty when the request asked for that."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class SaidToolUse(Answer, kw_only=True):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


SaidBlock = SaidText | SaidThinking | SaidToolUse


class OutputTokensDetails(Answer):
    thinking_tokens: int


class MessageUsage(Answer, kw_only=True):
    """Tokens. The prompt's are `input_tokens` and `cache_read_input_tokens` together."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    service_tier: Literal["standard"] | UnsetType = UNSET


class MessageAnswer(Answer, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Annotated[SaidBlock, Field(discriminator="type")]]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageEnd(Answer):
    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageEvent(Answer):
    """One event of a stream; which of the fields it has, its type says."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    ]
    message: MessageAnswer | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: SaidBlock | UnsetType = UNSET
    delta: dict[str, str] | MessageEnd | UnsetType = UNSET
    usage: MessageUsage | UnsetType = UNSET
    error: AnthropicErrorDetail | UnsetType = UNSET
    request_id: str | UnsetType = UNSET


class TokenCountAnswer(Answer):
    input_tokens: int


UNSIGNED = "unsigned"
_WITH_THOUGHTS = "held."


def signature_of(thinking: str, is_shown: bool) -> str:
    """The signature of a block with these thoughts, which are in the block itself if they are shown."""
    return UNSIGNED if is_shown else _WITH_THOUGHTS + b64encode(thinking.encode("utf-8", "replace")).decode()


def thoughts_of(thinking: str, signature: str | None) -> str:
    """The thoughts of a block that came back; "" for one whose signature is of another server."""
    if thinking or signature is None or not signature.startswith(_WITH_THOUGHTS):
        return thinking
    try:
        return b64decode(signature.removeprefix(_WITH_THOUGHTS), validate=True).decode("utf-8", "replace")
    except Error:
        return ""


class OpenBlock(Block[MessageEvent]):
    delta_type, delta_field = "", ""

    def opened(self) -> list[MessageEvent]:
        return [MessageEvent("content_block_start", index=self._index, content_block=self.made())]

    def grown(self, text: str) -> list[MessageEvent]:
        delta = {"type": self.delta_type, self.delta_field: text}
        return [MessageEvent("content_block_delta", index=self._index, delta=delta)]

    def closed(self) -> list[MessageEvent]:
        return [MessageEvent("content_block_stop", index=self._index)]


class OpenText(OpenBlock):
    delta_type, delta_field = "text_delta", "text"

    def made(self) -> SaidText:
        return SaidText(text=self.text)


class OpenThinking(OpenBlock):
    """What the model thinks; left out, it is only in the signature."""

    grows_by = Thought
    delta_type, delta_field = "thinking_delta", "thinking"

    def __init__(self, index: int, is_shown: bool) -> None:
        super().__init__(index)
        self._is_shown = is_shown

    def made(self) -> SaidThinking:
        """A thinking block, signed once there is something in it."""
        signature = signature_of(self.text, self._is_shown) if self._pieces else ""
        return SaidThinking(thinking=self.text if self._is_shown else "", signature=signature)

    def grown(self, text: str) -> list[MessageEvent]:
        return super().grown(text) if self._is_shown else []

    def closed(self) -> list[MessageEvent]:
        delta = {"type": "signature_delta", "signature": signature_of(self.text, self._is_shown)}
        return [MessageEvent("content_block_delta", index=self._index, delta=delta), *super().closed()]


class OpenToolUse(OpenBlock):
    """A call; its input grows as JSON text."""

    grows_by = CallArguments
    delta_type, delta_field = "input_json_delta", "partial_json"

    def __init__(self, index: int, call_id: str, name: str) -> None:
        super().__init__(index)
        own = f"toolu_{call_id.removeprefix('call_')}"  # a model may have written what no request can send back
        self._id, self._name = own if IDENTIFIER.fullmatch(own) else f"toolu_{uuid4().hex[:24]}", name

    def opened(self) -> list[MessageEvent]:
        call = SaidToolUse(id=self._id, name=self._name, input={})
        return [MessageEvent("content_block_start", index=self._index, content_block=call)]

    def made(self) -> SaidToolUse | SaidText:
        """A call; the text that was written where its input is no JSON object, because it was cut or is wrong."""
        given = whole_object(self.text)
        return SaidText(text=self.text) if given is None else SaidToolUse(id=self._id, name=self._name, input=given)


@dataclass
class MessageWriter(BlockWriter[MessageEvent, OpenBlock]):
    """Owns the content of one message; streamed or not, the same blocks make it.

    is_window_bound: the context window ends before `max_tokens`.
    """

    envelope: Envelope
    stop_sequences: tuple[str, ...]
    is_window_bound: bool
    shows_thoughts: bool
    request_id: str
    _has_begun: bool = field(default=False, init=False)

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[MessageEvent]:
        begin = (
            [] if self._has_begun else [MessageEvent("message_start", message=self._message(MessageEnd(None, None)))]
        )
        self._has_begun = True
        return begin + self._grow(deltas)

    def last_chunks(self) -> list[MessageEvent]:
        closed = self._close()
        end = MessageEvent("message_delta", delta=self._ended(), usage=self._usage())
        return [*closed, end, MessageEvent("message_stop")]

    def failure(self, error: HexserveError) -> list[MessageEvent]:
        detail = anthropic_error(from_engine(error))
        return [MessageEvent("error", error=detail, request_id=self.request_id)]

    def answer(self) -> MessageAnswer:
        self._close()
        return self._message(self._ended())

    def _block(self, part: Part) -> OpenBlock:
        match part:
            case Thought():
                return OpenThinking(self._place, self.shows_thoughts)
            case CallBegin():
                return OpenToolUse(self._place, part.id, part.name)
            case _:
                assert isinstance(part, str), "arguments follow the begin of their call"
                return OpenText(self._place)

    def _ended(self) -> MessageEnd:
        """Why it ended; a call whose input cannot be given to a tool is none."""
        last = self._last
        if last is not None and last.finish is FinishReason.LENGTH:
            return MessageEnd("model_context_window_exceeded" if self.is_window_bound else "max_tokens", None)
        if last is not None and isinstance(last.stopped_by, str) and last.stopped_by in self.stop_sequences:
            return MessageEnd("stop_sequence", last.stopped_by)
        has_calls = any(isinstance(block, SaidToolUse) for block in self._closed)
        return MessageEnd("tool_use" if has_calls else "end_turn", None)

    def _message(self, end: MessageEnd) -> MessageAnswer:
        usage = self._usage()
        usage.service_tier = "standard"
        own: dict[str, Any] = {"id": self.envelope.id.replace("-", "_"), "model": self.envelope.model}
        return MessageAnswer(**own, content=list(self._closed), usage=usage, **asdict(end))

    def _usage(self) -> MessageUsage:
        counted = self.count.usage()
        cached = counted.prompt_tokens_details.cached_tokens
        return MessageUsage(
            input_tokens=counted.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=counted.completion_tokens,
            output_tokens_details=OutputTokensDetails(counted.completion_tokens_details.reasoning_tokens),
        )
