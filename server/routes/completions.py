"""POST /v1/completions."""

from fastapi import APIRouter, Request, Response

from engine.request import PromptEmbeds
from server.http.body import BoundedRoute
from server.protocol.completion_answer import Completion
from server.protocol.completion_request import CompletionRequest
from server.protocol.openapi_responses import answers
from server.requests.params import check_generates, completion_params
from server.requests.prompts import EncodedPrompt, check_count, given_prompts, prompt_ids
from server.requests.structured_output import text_form
from server.service import answer, take_model, until_left
from server.writers.completion import CompletionWriter
from server.writers.text_choice import Best, Echo, TextChoice
from server.writers.usage import StreamUsage, TokenCount

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/completions", response_model=None, responses=answers(Completion, Completion))
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue one prompt or several, given as text or as token ids; whole or as a stream of events."""
    service = await take_model(request, body.model, check_generates)
    engine = service.engine
    params = completion_params(body, engine, service.settings)
    given = given_prompts(body)
    check_count(len(given), params.choices, service.settings)
    service.admit(len(given) * params.choices)
    prompts = await until_left(request, prompt_ids(given, engine, params.keep))
    params = await until_left(request, service.constrained(params, text_form(body)))
    envelope = service.envelope("cmpl")
    field = "prompt" if body.prompt_embeds is None else "prompt_embeds"
    stream = service.launch(envelope, prompts, params, field)
    count = TokenCount(stream.prompt_tokens, params.choices)
    echoes = [
        None
        if not body.echo or isinstance(prompt, EncodedPrompt) or isinstance(ids, PromptEmbeds)
        else Echo.of(prompt, engine.token_pieces(ids))
        for prompt, ids in zip(given, prompts, strict=True)
    ]
    choices = [TextChoice(body.logprobs, echo) for echo in echoes for _ in range(params.choices)]
    best = Best(params.choices, body.n or 1)
    writer = CompletionWriter(envelope, count, choices, StreamUsage(count, body.stream_options), best)
    return await answer(request, stream, writer, bool(body.stream))
