"""Prompts of a completion: one or many, each a text or token ids."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import CallerError
from engine.request import PromptEmbeds
from server.engine_seam import EngineLike
from server.http.errors import refuse
from server.protocol.completion_request import CompletionRequest
from server.settings import Settings


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Embeddings in place of a text, as they came."""

    text: str


GivenPrompt = str | list[int] | EncodedPrompt
ReadPrompt = tuple[int, ...] | PromptEmbeds


def given_prompts(body: CompletionRequest) -> list[GivenPrompt]:
    """The prompts of a request, one or many, as they were given."""
    if body.prompt_embeds is not None:
        return _encoded_prompts(body)
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    return [ids] if ids else [item for item in prompt if not isinstance(item, int)]


def _encoded_prompts(body: CompletionRequest) -> list[GivenPrompt]:
    """Raises Refusal for fields that need the prompt's tokens."""
    if body.prompt != "":
        raise refuse("Give 'prompt' or 'prompt_embeds', not both.", "prompt_embeds", "invalid_value")
    for name in ("echo", "truncate_prompt_tokens"):
        if getattr(body, name):
            raise refuse(f"'{name}' needs the tokens of a prompt, 'prompt_embeds' has none.", name, "invalid_value")
    given = [body.prompt_embeds] if isinstance(body.prompt_embeds, str) else body.prompt_embeds or []
    return [EncodedPrompt(text) for text in given]


def check_count(prompts: int, choices: int, settings: Settings) -> None:
    """Raise Refusal when these prompts with so many choices each are more than one request may ask for."""
    if prompts > settings.max_prompts:
        message = f"Invalid 'prompt': too many elements. At most {settings.max_prompts} are allowed."
        raise refuse(message, "prompt", "array_above_max_length")
    if prompts * choices > settings.max_queued:
        message = (
            f"{prompts} prompts times {choices} choices is more than the {settings.max_queued} requests taken at once."
        )
        raise refuse(message, "prompt", "array_above_max_length")


async def prompt_ids(given: Sequence[GivenPrompt], engine: EngineLike, keep: int | None) -> list[ReadPrompt]:
    """Each prompt as token ids, of a longer one the last `keep`. Raises CallerError naming the prompt at fault."""
    prompts: list[ReadPrompt] = []
    for number, prompt in enumerate(given):
        try:
            if isinstance(prompt, EncodedPrompt):
                prompts.append(await engine.embeds_prompt(prompt.text, "prompt_embeds"))
            elif isinstance(prompt, str):
                prompts.append(await engine.text_prompt(prompt, keep))
            else:
                prompts.append(engine.check_ids(prompt[-keep:] if keep else prompt, "prompt"))
        except CallerError as error:
            field = "prompt_embeds" if isinstance(prompt, EncodedPrompt) else "prompt"
            if len(given) > 1 and error.param is not None and error.param.startswith(field):
                error.param = f"{field}[{number}]{error.param.removeprefix(field)}"
            raise
    return prompts
