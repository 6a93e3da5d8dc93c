"""What a request says of block diffusion, and what such a model cannot honour, refused by name."""

from engine.bundle.manifest import DiffusionSpec
from engine.request import Denoising, Unmasking
from server.engine_seam import EngineLike
from server.http.errors import Refusal, refuse
from server.protocol.chat_request import ChatRequest
from server.protocol.completion_request import CompletionRequest
from server.protocol.generation_request import GenerationBody
from server.settings import Settings

FIELDS = ("denoising_steps", "unmasking_strategy", "confidence_threshold", "entropy_bound")
# Tokens of a block are chosen at once, in no order: what a penalty would count is not known then.
PENALTIES = {"repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0}


def denoising(body: GenerationBody, engine: EngineLike, settings: Settings) -> Denoising | None:
    """How the blocks of an answer are denoised, None for a model that takes one token after the other.

    Raises Refusal naming a field that the model served cannot honour.
    """
    diffusion = engine.info.manifest.diffusion
    if diffusion is None:
        for field in FIELDS:
            if getattr(body, field) is not None:
                message = f"'{field}' is not supported: this model generates one token after the other, not blocks."
                raise refuse(message, field, "unsupported_parameter")
        return None
    _refuse_ordered(body)
    threshold, bound = body.confidence_threshold, body.entropy_bound
    return Denoising(
        diffusion.block_length,
        diffusion.mask_token,
        _steps(body.denoising_steps, diffusion, settings),
        Unmasking(body.unmasking_strategy or settings.unmasking_strategy),
        float(settings.confidence_threshold if threshold is None else threshold),
        float(settings.entropy_bound if bound is None else bound),
    )


def out_of_order(param: str) -> Refusal:
    """The refusal of a field whose effect on a token depends on every token before."""
    message = f"'{param}' is not supported: a block-diffusion model chooses the tokens of a block in no order."
    return refuse(message, param, "unsupported_parameter")


def _steps(asked: int | None, diffusion: DiffusionSpec, settings: Settings) -> int:
    """A setting that is more than a block has tokens is as many; a request that asks for more is refused."""
    most = diffusion.block_length
    if asked is not None and asked > most:
        message = f"Invalid 'denoising_steps': {asked} is above the {most} tokens of a block."
        raise refuse(message, "denoising_steps", "integer_above_max_value")
    return asked or min(most, settings.denoising_steps or most)


def _refuse_ordered(body: GenerationBody) -> None:
    for field, neutral in PENALTIES.items():
        if getattr(body, field) not in (None, neutral):
            raise out_of_order(field)
    if isinstance(body, CompletionRequest) and body.echo and body.logprobs is not None:
        raise refuse(
            "'echo' with 'logprobs' is not supported: a block-diffusion model gives a prompt's tokens no probability.",
            "echo",
            "unsupported_parameter",
        )
    if not isinstance(body, ChatRequest):
        return
    if body.prediction is not None:
        raise out_of_order("prediction")
    if body.thinking_token_budget is not None:
        raise out_of_order("thinking_token_budget")
    if body.tool_choice not in (None, "none", "auto"):
        raise out_of_order("tool_choice")
    if body.parallel_tool_calls is False:
        raise out_of_order("parallel_tool_calls")
