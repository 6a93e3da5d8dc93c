"""Bodies and answers of /tokenize, /detokenize and /tokenizer_info: vLLM's shapes, which lm-eval's tokenizer reads."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from server.protocol.chat_request import Message, Tool
from server.protocol.fields import MAX_MESSAGES, MAX_TOOLS, Answer, Body, Name, NotYet, TokenId

MAX_CHARACTERS = 2**20
MAX_IDS = 2**17


class TokenizeText(Body):
    """A plain text. Special tokens written in it count as such; `add_special_tokens` false leaves out BOS."""

    prompt: Annotated[str, StringConstraints(max_length=MAX_CHARACTERS)]
    model: Name | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChat(Body):
    """A conversation, rendered with the model's chat template."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    model: Name | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    add_special_tokens: Literal[False] | None = None
    continue_final_message: Literal[False] | None = None
    chat_template: NotYet = None
    chat_template_kwargs: NotYet = None
    mm_processor_kwargs: NotYet = None


def _kind(body: object) -> str:
    return "chat" if isinstance(body, dict) and "messages" in body else "text"


TokenizeRequest = Annotated[
    Annotated[TokenizeText, Tag("text")] | Annotated[TokenizeChat, Tag("chat")], Discriminator(_kind)
]


class DetokenizeRequest(Body):
    """Token ids to turn into text."""

    tokens: Annotated[list[TokenId], Field(max_length=MAX_IDS, fail_fast=True)]
    model: Name | None = None


class TokenizeAnswer(Answer):
    """Answer of POST /tokenize; `token_strs` are the vocabulary's own spellings, if they were asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Answer):
    """Answer of POST /detokenize; bytes that are not UTF-8 become U+FFFD."""

    prompt: str


class TokenizerInfo(Answer):
    """Answer of GET /tokenizer_info: what a tokenizer_config.json says."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    add_bos_token: bool
    model_max_length: int
    vocab_size: int
    additional_special_tokens: list[str]
    chat_template: str | None
