"""Answers of /api/chat and /api/generate. Every line of a stream has the same shape; the last one has the counts."""

from typing import Any, Literal

from pydantic import BaseModel

from server.protocol.chat_answer import TokenLogprobEntry
from server.protocol.fields import Answer

DoneReason = Literal["stop", "length", "load", "unload"]


class OllamaCalledAnswer(Answer):
    """Name and arguments; `index` is the call's place in the answer."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCallAnswer(Answer):
    """One call the model made, whole."""

    id: str
    function: OllamaCalledAnswer


class OllamaAnswerMessage(Answer):
    """What the model said, or what is new of it in a stream."""

    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[OllamaCallAnswer] | None = None


class OllamaGeneration(BaseModel):
    """Fields of both answers. Durations are nanoseconds; they and `done_reason` come when `done` is true."""

    model: str
    created_at: str
    done: bool
    done_reason: DoneReason | None = None
    logprobs: list[TokenLogprobEntry] | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class OllamaChatAnswer(OllamaGeneration, Answer):
    """Answer of POST /api/chat, whole or a line of its stream."""

    message: OllamaAnswerMessage


class OllamaGenerateAnswer(OllamaGeneration, Answer):
    """Answer of POST /api/generate, whole or a line of its stream."""

    response: str
    thinking: str | None = None
