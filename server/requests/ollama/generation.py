"""/api/chat and /api/generate -> the body of the chat route, whose functions do the rest."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from engine.client.engine import EngineInfo
from server.http.errors import refuse
from server.protocol.chat_request import ChatRequest
from server.protocol.ollama.options import OllamaOptions
from server.protocol.ollama.requests import OllamaChatRequest, OllamaFormat, OllamaGenerationBody
from server.protocol.structured_outputs import JsonObjectFormat, JsonSchemaFormat, NamedSchema, ResponseFormat
from server.requests.chat_template_options import template_options
from server.requests.params import GenerationParams

# Ollama's own, which its clients count on when they leave the options out.
DEFAULT_TEMPERATURE, DEFAULT_TOP_K, DEFAULT_TOP_P = 0.8, 40, 0.9

OPTIONS = frozenset(OllamaOptions.model_fields)
# Fields that the chat route's checks name, and what they are called here.
OWN_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "max_completion_tokens": "options.num_predict",
        "repetition_penalty": "options.repeat_penalty",
        "response_format": "format",
        "response_format.json_schema.schema": "format",
        "chat_template_kwargs.enable_thinking": "think",
    }
)


def chat_name(param: str) -> str:
    """What a field of the chat route is called in /api/chat."""
    return OWN_NAMES.get(param, f"options.{param}" if param in OPTIONS else param)


def generate_name(param: str) -> str:
    """What a field of the chat route is called in /api/generate."""
    return "prompt" if param.startswith("messages") else chat_name(param)


def as_chat(body: OllamaGenerationBody, info: EngineInfo) -> ChatRequest:
    """The fields both formats have, under the chat route's names; they were validated already.

    Raises Refusal for a context larger than the model's and for reasoning of a model that does not reason.
    """
    options = body.options or OllamaOptions()
    _check_context(options.num_ctx, info.max_context)
    if body.think and info.manifest.text.writes.reasoning is None:
        raise refuse("'think' is not supported: this model does not reason.", "think", "unsupported_parameter")
    penalises = options.repeat_last_n != 0
    return ChatRequest.model_construct(
        model=body.model,
        messages=[],
        max_completion_tokens=_most_tokens(options.num_predict),
        temperature=DEFAULT_TEMPERATURE if options.temperature is None else options.temperature,
        top_k=DEFAULT_TOP_K if options.top_k is None else options.top_k,
        top_p=DEFAULT_TOP_P if options.top_p is None else options.top_p,
        min_p=options.min_p,
        seed=None if options.seed == -1 else options.seed,
        stop=options.stop,
        repetition_penalty=options.repeat_penalty if penalises else None,
        presence_penalty=options.presence_penalty if penalises else None,
        frequency_penalty=options.frequency_penalty if penalises else None,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        tools=body.tools if isinstance(body, OllamaChatRequest) else None,
        response_format=_response_format(body.format),
    )


def fitted(params: GenerationParams, prompt_tokens: int, context: int) -> GenerationParams:
    """`num_predict` is a bound and no promise: of an answer that might not fit, as much as fits is generated."""
    is_too_much = params.max_tokens is not None and prompt_tokens + params.max_tokens > context
    return replace(params, max_tokens=None) if is_too_much else params


def think_options(think: bool | str | None) -> dict[str, Any]:
    """What the chat template is told of `think`; nothing when the request says nothing."""
    if isinstance(think, bool):
        return {"enable_thinking": think, "thinking": think}
    return template_options(None, think)


def _check_context(wanted: int | None, most: int) -> None:
    if wanted is not None and wanted > most:
        message = f"Invalid 'options.num_ctx': {wanted} is above the {most} tokens of this model's context."
        raise refuse(message, "options.num_ctx", "integer_above_max_value")


def _most_tokens(num_predict: int | None) -> int | None:
    """-1 and -2 are as many as fit."""
    if num_predict == 0:
        message = "Invalid 'options.num_predict': 0 is no number of tokens; -1 is as many as fit."
        raise refuse(message, "options.num_predict", "integer_below_min_value")
    return None if num_predict is None or num_predict < 0 else num_predict


def _response_format(form: OllamaFormat | None) -> ResponseFormat | None:
    """Keywords of a schema that cannot be enforced are ignored, as in Ollama."""
    if not isinstance(form, dict):
        return JsonObjectFormat.model_construct(type="json_object") if form == "json" else None
    named = NamedSchema.model_construct(name="format", definition=form, strict=False)
    return JsonSchemaFormat.model_construct(type="json_schema", json_schema=named)
