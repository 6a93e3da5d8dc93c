"""POST /tokenize, POST /detokenize, GET /tokenizer_info: vLLM's shapes, which lm-eval's tokenizer reads."""

from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Discriminator, Field, StringConstraints, Tag

from engine.errors import InvalidRequest
from engine.request import ids_of
from server.api.body import BoundedRoute
from server.api.openapi import answers
from server.generation.chat_request import Message, Tool
from server.generation.chat_template import template_messages, template_tools
from server.generation.launch import take_model, until_left, written
from server.http.fields import MAX_MESSAGES, MAX_TOOLS, Answer, Body, Name, NotYet, TokenId


class TokenizeText(Body):
    """A plain text. Special tokens written in it count as such; `add_special_tokens` false leaves out BOS."""

    prompt: Annotated[str, StringConstraints(max_length=2**20)]
    model: Name | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChat(Body):
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
    tokens: Annotated[list[TokenId], Field(max_length=2**17, fail_fast=True)]
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


class TokenizerInfo(Answer, kw_only=True):
    """Answer of GET /tokenizer_info: what a tokenizer_config.json says."""

    tokenizer_class: str = "PreTrainedTokenizerFast"
    bos_token: str | None
    eos_token: str | None
    pad_token: None = None
    add_bos_token: bool
    model_max_length: int
    vocab_size: int
    additional_special_tokens: list[str]
    chat_template: str | None


router = APIRouter(route_class=BoundedRoute)


@router.post("/tokenize", responses=answers(TokenizeAnswer))
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Token ids of a text or a conversation."""
    service = await take_model(request, body.model)
    engine = service.engine
    if isinstance(body, TokenizeChat):
        tools = template_tools(body.tools) if body.tools else None
        options = {"add_generation_prompt": body.add_generation_prompt is not False}
        work = service.chat_prompt(template_messages(body.messages), tools, options)
        ids = ids_of(await until_left(request, work))
    else:
        has_special, spec = body.add_special_tokens is not False, engine.info.manifest.pooling
        ids = await until_left(request, engine.tokenize(body.prompt, has_special and spec is None))
        if has_special and spec is not None:  # what an input has, of a model that makes embeddings
            ids = (*spec.begin_ids, *ids, *spec.end_ids)
    spelled = list(await engine.token_names(ids)) if body.return_token_strs else None
    return written(TokenizeAnswer(len(ids), engine.info.max_context, list(ids), spelled))


@router.post("/detokenize", responses=answers(Detokenized))
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """The text of token ids, special tokens included."""
    service = await take_model(request, body.model)
    most = service.engine.info.vocab - 1
    for index, token_id in enumerate(body.tokens):
        if token_id > most:
            param = f"tokens[{index}]"
            raise InvalidRequest(f"'{param}' is {token_id}, not a token id of this model (0 to {most}).", param)
    return written(Detokenized(await until_left(request, service.engine.detokenize(body.tokens))))


@router.get("/tokenizer_info", responses=answers(TokenizerInfo, statuses=(404, 503)))
async def tokenizer_info(request: Request, model: str | None = None) -> Response:
    """Special tokens and chat template of the model; without a name, of the first."""
    engine = (await take_model(request, model)).engine
    text, info = engine.text_facts, engine.info
    facts = TokenizerInfo(
        bos_token=text.bos_token,
        eos_token=text.eos_token,
        add_bos_token=text.add_bos,
        model_max_length=info.max_context,
        vocab_size=info.vocab,
        additional_special_tokens=list(text.special_tokens),
        chat_template=text.chat_template,
    )
    return written(facts)
