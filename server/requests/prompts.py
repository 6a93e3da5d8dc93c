"""Prompts of a completion: one or many, each a text or token ids."""

from collections.abc import Sequence

from engine.errors import CallerError
from server.engine_seam import EngineLike
from server.http.errors import refuse
from server.protocol.completion_request import CompletionRequest
from server.settings import Settings

GivenPrompt = str | list[int]


def given_prompts(body: CompletionRequest) -> list[GivenPrompt]:
    """The prompts of a request, one or many, as they were given."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    return [ids] if ids else [item for item in prompt if not isinstance(item, int)]


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


async def prompt_ids(given: Sequence[GivenPrompt], engine: EngineLike, keep: int | None) -> list[tuple[int, ...]]:
    """Token ids of each prompt, of a longer one the last `keep`. Raises CallerError naming the prompt at fault."""
    prompts = []
    for number, prompt in enumerate(given):
        try:
            if isinstance(prompt, str):
                prompts.append(await engine.text_prompt(prompt, keep))
            else:
                prompts.append(engine.check_ids(prompt[-keep:] if keep else prompt, "prompt"))
        except CallerError as error:
            if len(given) > 1 and error.param is not None and error.param.startswith("prompt"):
                error.param = f"prompt[{number}]{error.param.removeprefix('prompt')}"
            raise
    return prompts
