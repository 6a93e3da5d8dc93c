"""POST /tokenize, POST /detokenize, GET /tokenizer_info. The work is done in a thread, one piece at a time."""

from fastapi import APIRouter, Request

from engine.errors import InvalidRequest
from server.engine_seam import EngineLike
from server.http.body import BoundedRoute
from server.protocol.openapi_responses import error_answers
from server.protocol.tokenize import (
    Detokenized,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeChat,
    TokenizeRequest,
    TokenizerInfo,
)
from server.requests.messages import template_messages
from server.service import take_model, until_left

router = APIRouter(route_class=BoundedRoute)


@router.post("/tokenize", responses=error_answers())
async def tokenize(body: TokenizeRequest, request: Request) -> TokenizeAnswer:
    """Token ids of a text or a conversation."""
    service = await take_model(request, body.model)
    if isinstance(body, TokenizeChat):
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()] or None
        options = {"add_generation_prompt": body.add_generation_prompt is not False}
        work = service.engine.chat_prompt(template_messages(body.messages), tools, options)
    else:
        work = _text_tokens(service.engine, body.prompt, body.add_special_tokens is not False)
    ids = await until_left(request, work)
    names = await service.engine.token_names(ids) if body.return_token_strs else None
    return TokenizeAnswer(
        count=len(ids),
        max_model_len=service.engine.info.max_context,
        tokens=list(ids),
        token_strs=None if names is None else list(names),
    )


async def _text_tokens(engine: EngineLike, text: str, add_special: bool) -> tuple[int, ...]:
    """The tokens that a prompt of this text has, or of a model that makes embeddings the input."""
    spec = engine.info.manifest.pooling
    if spec is None or not add_special:
        return await engine.tokenize(text, add_special)
    return (*spec.begin_ids, *await engine.tokenize(text, False), *spec.end_ids)


@router.post("/detokenize", responses=error_answers())
async def detokenize(body: DetokenizeRequest, request: Request) -> Detokenized:
    """The text of token ids, special tokens included."""
    service = await take_model(request, body.model)
    vocabulary = service.engine.info.vocab
    for index, token_id in enumerate(body.tokens):
        if token_id >= vocabulary:
            param = f"tokens[{index}]"
            raise InvalidRequest(
                f"'{param}' is {token_id}, not a token id of this model (0 to {vocabulary - 1}).", param
            )
    return Detokenized(prompt=await until_left(request, service.engine.detokenize(body.tokens)))


@router.get("/tokenizer_info", responses=error_answers(404, 503))
async def tokenizer_info(request: Request, model: str | None = None) -> TokenizerInfo:
    """Special tokens and chat template of the model; without a name, of the first."""
    engine = (await take_model(request, model)).engine
    text, info = engine.text_facts, engine.info
    return TokenizerInfo(
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token=text.bos_token,
        eos_token=text.eos_token,
        pad_token=None,
        add_bos_token=text.add_bos,
        model_max_length=info.max_context,
        vocab_size=info.vocab,
        additional_special_tokens=list(text.special_tokens),
        chat_template=text.chat_template,
    )
