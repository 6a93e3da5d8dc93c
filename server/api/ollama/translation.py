"""Bodies in Ollama's format as the chat route's, and the model that they name."""

import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request

from engine.bundle.manifest import Manifest
from engine.client.engine import EngineInfo
from engine.text.rendering import TextFacts
from server.api.ollama import requests as given
from server.api.ollama.answers import Stopwatch
from server.api.ollama.requests import OllamaEmbeddingsRequest, OllamaGenerateRequest, OllamaMessage, OllamaOptions
from server.generation.chat_request import ChatRequest, JsonObjectFormat, JsonSchemaFormat
from server.generation.chat_template import image_part, template_options
from server.generation.launch import Service, server_of, take_model
from server.generation.params import EmbeddingRequest, GenerationParams
from server.http.errors import echo, refuse
from server.models.models import ServedModel, find

LATEST = ":latest"


def untagged(name: str, served: Collection[str]) -> str:
    """The served name that is meant; a name that nobody has stays as it is, for the refusal."""
    bare = name.removesuffix(LATEST)
    return bare if name not in served and bare in served else name


def named_model(models: Sequence[ServedModel], name: str) -> tuple[ServedModel, str]:
    """The model that is meant, and what it, or its adapter, is called. Refusal 404 when there is none."""
    served = untagged(name, [known for model in models for known in model.names])
    return find(models, served), served


def tagged(name: str) -> str:
    """A served name as Ollama lists it; clients add the tag themselves and then look for the result in the list."""
    return name if ":" in name else name + LATEST


UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
_PART = re.compile(rf"({_NUMBER})(ns|us|µs|ms|s|m|h)", re.ASCII)
_DURATION = re.compile(rf"[+-]?(?:(?:{_NUMBER})|(?:(?:{_NUMBER})(?:ns|us|µs|ms|s|m|h))+)", re.ASCII)


def kept_s(keep_alive: float | str | None) -> float | None:
    """Seconds, below zero for ever; None when nothing was said. Raises Refusal for a text that is no duration."""
    if not isinstance(keep_alive, str):
        return keep_alive
    if not _DURATION.fullmatch(keep_alive):
        message = f"Invalid 'keep_alive': {echo(keep_alive)} is neither seconds nor a duration such as '5m' or '1h30m'."
        raise refuse(message, "keep_alive", "invalid_value")
    sign = -1.0 if keep_alive.startswith("-") else 1.0
    parts = _PART.findall(keep_alive)
    if not parts:
        return float(keep_alive)
    return sign * sum(float(number) * UNITS_S[unit] for number, unit in parts)


def template_turns(messages: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """One dictionary per message; raises Refusal naming the message at fault.
    Ollama's calls may be without ids, which some templates need: then a result belongs to the first call of its
    tool, or of any tool, that has none yet."""
    turns: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # id and tool of the calls without a result
    for number, message in enumerate(messages):
        content = _shown(message.content or "", message.images, f"messages[{number}].images")
        turn: dict[str, Any] = {"role": message.role, "content": content}
        if message.thinking and message.role == "assistant":
            turn["reasoning_content"] = message.thinking
        if message.tool_calls:
            turn["tool_calls"] = [_call(call, number, place) for place, call in enumerate(message.tool_calls)]
            waiting += [(call["id"], call["function"]["name"]) for call in turn["tool_calls"]]
        if message.role == "tool":
            turn |= _result_of(message, waiting)
        elif message.name is not None:
            turn["name"] = message.name
        turns.append(turn)
    return turns


def check_prompt(body: OllamaGenerateRequest, text: TextFacts) -> bool:
    """Whether the prompt goes to the model as it is; raises Refusal naming a field that is not honoured."""
    is_raw = bool(body.raw) or text.chat_template is None
    if is_raw and body.images:
        raise refuse("'images' needs a chat template, and no 'raw'.", "images", "unsupported_parameter")
    if is_raw and body.system:
        why = "with 'raw'" if body.raw else "by a model without a chat template"
        raise refuse(f"'system' is not supported {why}.", "system", "unsupported_parameter")
    return is_raw


def prompt_turns(body: OllamaGenerateRequest) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": body.system}] if body.system else []
    return [*system, {"role": "user", "content": _shown(body.prompt or "", body.images, "images")}]


def _shown(text: str, images: Sequence[str] | None, param: str) -> str | list[dict[str, Any]]:
    """A text, behind its images if there are any. What kind they are is told by their bytes."""
    if not images:
        return text
    shown = [image_part(f"data:image/any;base64,{image}", f"{param}[{n}]") for n, image in enumerate(images)]
    return [*shown, {"type": "text", "text": text}]


def _call(call: given.OllamaToolCall, message: int, place: int) -> dict[str, Any]:
    """An id that was left out has nine letters and digits, the form that Mistral's templates insist on."""
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id or f"c{message:05}{place:03}", "type": "function", "function": function}


def _result_of(message: OllamaMessage, waiting: list[tuple[str, str]]) -> dict[str, Any]:
    """Whose result a tool's message is; that call waits no longer."""
    identity, tool = message.tool_call_id or None, message.tool_name or message.name or None
    for call in waiting:
        if (identity or call[0], tool or call[1]) == call:
            waiting.remove(call)
            identity, tool = call
            break
    return {key: text for key, text in (("tool_call_id", identity), ("name", tool)) if text is not None}


# Ollama's own, which its clients count on when they leave the options out.
DEFAULT_TEMPERATURE, DEFAULT_TOP_K, DEFAULT_TOP_P = 0.8, 40, 0.9
# Fields that the chat route's checks name, and what they are called here.
FIELD_ALIASES = {
    "max_completion_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    "response_format.json_schema.schema": "format",
    "chat_template_kwargs.enable_thinking": "think",
}


def chat_name(param: str) -> str:
    return FIELD_ALIASES.get(param, f"options.{param}" if param in OllamaOptions.model_fields else param)


def generate_name(param: str) -> str:
    return "prompt" if param.startswith("messages") else chat_name(param)


def as_chat(body: given.OllamaGenerationBody, info: EngineInfo) -> ChatRequest:
    """The fields both formats have, under the chat route's names; they were validated already.
    Raises Refusal for a context larger than the model's and for reasoning of a model that does not reason."""
    options, most, form = body.options or OllamaOptions(), info.max_context, body.format
    if options.num_ctx is not None and options.num_ctx > most:
        message = f"Invalid 'options.num_ctx': {options.num_ctx} is above the {most} tokens of this model's context."
        raise refuse(message, "options.num_ctx", "integer_above_max_value")
    if body.think and info.manifest.text.writes.reasoning is None:
        raise refuse("'think' is not supported: this model does not reason.", "think", "unsupported_parameter")
    penalises = options.repeat_last_n != 0
    asked = JsonObjectFormat(type="json_object") if form == "json" else None
    return ChatRequest.model_construct(
        model=body.model,
        messages=[],
        max_completion_tokens=_most_tokens(options.num_predict),
        temperature=DEFAULT_TEMPERATURE if options.temperature is None else options.temperature,
        top_k=DEFAULT_TOP_K if options.top_k is None else options.top_k,
        top_p=DEFAULT_TOP_P if options.top_p is None else options.top_p,
        min_p=options.min_p or 0.0,
        seed=None if options.seed == -1 else options.seed,
        stop=options.stop,
        repetition_penalty=options.repeat_penalty if penalises and options.repeat_penalty else 1.0,
        presence_penalty=options.presence_penalty if penalises else None,
        frequency_penalty=options.frequency_penalty if penalises else None,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        tools=body.tools if isinstance(body, given.OllamaChatRequest) else None,
        # Keywords of a schema that cannot be enforced are ignored, as in Ollama.
        response_format=JsonSchemaFormat.of(form, False) if isinstance(form, dict) else asked,
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


def _most_tokens(num_predict: int | None) -> int | None:
    """-1 and -2 are as many as fit."""
    if num_predict == 0:
        message = "Invalid 'options.num_predict': 0 is no number of tokens; -1 is as many as fit."
        raise refuse(message, "options.num_predict", "integer_below_min_value")
    return None if num_predict is None or num_predict < 0 else num_predict


WHOLE = -1  # of `truncate_prompt_tokens`: as many as the model takes


def as_embedding(body: given.OllamaEmbedRequest | OllamaEmbeddingsRequest) -> EmbeddingRequest:
    """The fields both formats have, under the names of /v1/embeddings; they were validated already."""
    if isinstance(body, OllamaEmbeddingsRequest):
        return EmbeddingRequest.model_construct(model=body.model, input=body.prompt, truncate_prompt_tokens=WHOLE)
    keep = None if body.truncate is False else WHOLE
    own: dict[str, Any] = {"model": body.model, "input": body.input, "dimensions": body.dimensions}
    return EmbeddingRequest.model_construct(**own, truncate_prompt_tokens=keep)


def embed_name(param: str) -> str:
    return "prompt" if param == "input" else param


async def load_model(
    request: Request, model: str, keep_alive: float | str | None, check: Callable[[Manifest], object]
) -> tuple[Service, Stopwatch]:
    """Wait until the model is there, and say how long it stays without another request. Raises as `take_model`."""
    came_ns = time.perf_counter_ns()
    keep_s = kept_s(keep_alive)
    named, name = named_model(server_of(request).models.models, model)
    service = await take_model(request, name, check)
    named.keep_s = keep_s
    return service, Stopwatch(came_ns, time.perf_counter_ns())


async def unload_model(request: Request, model: str) -> None:
    """Unload a model: at once, or when the requests that use it have ended. Refusal for one that always stays."""
    models = server_of(request).models
    named, _ = named_model(models.models, model)
    if named.comes_and_goes and named.pins:
        named.keep_s = 0.0
    else:
        await models.unload(named)
