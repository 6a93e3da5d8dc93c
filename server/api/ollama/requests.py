"""The bodies of the routes under /api, which speak Ollama's format."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from server.generation.chat_request import MAX_URL_CHARACTERS, Stop, Tool
from server.generation.params import MAX_INPUTS
from server.http import fields
from server.http.fields import MAX_TOKENS, Body, Name, NotYet, Probability, TextOrList, TextOrObject

One = Annotated[float, Field(ge=1, le=1)]


class OllamaOptions(Body):
    """Null means the default. The context is always the model's: `num_ctx` may be as much, and makes it no smaller."""

    num_predict: Annotated[int, Field(ge=-2, le=MAX_TOKENS)] | None = None
    temperature: fields.Temperature | None = None
    top_k: fields.TopK | None = None
    top_p: Probability | None = None
    min_p: Probability | None = None
    seed: fields.Seed | None = None
    stop: Stop | None = None
    repeat_penalty: fields.RepetitionPenalty | None = None
    repeat_last_n: Literal[-1, 0] | None = None
    presence_penalty: fields.Penalty | None = None
    frequency_penalty: fields.Penalty | None = None
    num_ctx: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None

    # Known, honoured where they change nothing.
    typical_p: One | None = None
    tfs_z: One | None = None
    mirostat: Literal[0] | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    penalize_newline: Literal[True] | None = None
    vocab_only: Literal[False] | None = None
    embedding_only: Literal[False] | None = None

    # How Ollama's runner lays out a model. A bundle says that itself; nothing of them is visible in an answer.
    num_keep: fields.TokenLimit | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None


OllamaFormat = TextOrObject[Literal["", "json"], dict[str, Any]]
Think = TextOrObject[Literal["low", "medium", "high"], bool]
KeepAlive = TextOrObject[Annotated[str, StringConstraints(max_length=64)], float]
# Of the bytes of an image in base64; no data URL.
ImageBytes = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL_CHARACTERS)]
Images = Annotated[list[ImageBytes], Field(max_length=1024, fail_fast=True)]


class OllamaGenerationBody(Body):
    """Fields that both routes share. A request streams unless `stream` is false."""

    model: Name
    stream: bool | None = None
    format: OllamaFormat | None = None
    options: OllamaOptions | None = None
    think: Think | None = None
    keep_alive: KeepAlive | None = None
    logprobs: bool | None = None
    top_logprobs: fields.TopLogprobs | None = None

    # What does not fit the context is refused, never cut or shifted out.
    truncate: Literal[False] | None = None
    shift: Literal[False] | None = None


class OllamaCalledFunction(Body):
    name: Name
    arguments: dict[str, Any]
    index: Annotated[int, Field(ge=0)] | None = None
    description: str | None = None


class OllamaToolCall(Body):
    """One call an assistant message made. Older clients give it no id."""

    function: OllamaCalledFunction
    id: Name | None = None
    type: Literal["function"] | None = None
    index: Annotated[int, Field(ge=0)] | None = None


class OllamaMessage(Body):
    """A message of any role. `tool_name` or `tool_call_id` say which call a tool's result answers."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[OllamaToolCall], Field(max_length=128, fail_fast=True)] | None = None
    tool_name: Name | None = None
    tool_call_id: Name | None = None
    name: Name | None = None
    images: Images | None = None


class OllamaChatRequest(OllamaGenerationBody):
    """POST /api/chat. Without messages it loads the model, or unloads it when `keep_alive` is 0."""

    messages: Annotated[list[OllamaMessage], Field(max_length=fields.MAX_MESSAGES, fail_fast=True)] | None = None
    tools: Annotated[list[Tool], Field(max_length=fields.MAX_TOOLS, fail_fast=True)] | None = None


class OllamaGenerateRequest(OllamaGenerationBody):
    """POST /api/generate. Without a prompt it loads the model, or unloads it when `keep_alive` is 0."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None

    # Known, not honoured: only what says nothing is accepted.
    suffix: Literal[""] | None = None
    template: Literal[""] | None = None
    context: Annotated[list[int], Field(max_length=0)] | None = None
    images: Images | None = None
    width: NotYet = None
    height: NotYet = None
    steps: NotYet = None


class OllamaEmbedRequest(Body):
    """POST /api/embed. A text that is too long is cut unless `truncate` is false, as in Ollama."""

    model: Name
    input: TextOrList[str, Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]]
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive | None = None


class OllamaEmbeddingsRequest(Body):
    model: Name
    prompt: str
    options: OllamaOptions | None = None
    keep_alive: KeepAlive | None = None
