"""The body of POST /v1/completions."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from server.protocol.fields import NotYet, TokenId, TokenLimit, TopLogprobs, text_or_list
from server.protocol.generation_request import MAX_CHOICES, GenerationBody

MAX_PROMPTS = 1024


def _shape(value: object) -> str:
    """Tag of a string-or-list field, told from its first element (the rest is then checked against that type)."""
    if not isinstance(value, list):
        return "text"
    first = value[0] if value else ""
    if isinstance(first, list):
        return "id_lists"
    return "ids" if isinstance(first, int) else "texts"


TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("id_lists")],
    Discriminator(_shape),
]


EncodedEmbeds = Annotated[str, StringConstraints(min_length=1)]
EncodedList = Annotated[list[EncodedEmbeds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
PromptEmbedsField = Annotated[
    Annotated[EncodedEmbeds, Tag("text")] | Annotated[EncodedList, Tag("texts")], Discriminator(text_or_list)
]


class CompletionRequest(GenerationBody):
    """POST /v1/completions."""

    prompt: Prompt
    prompt_embeds: PromptEmbedsField | None = None
    logprobs: TopLogprobs | None = None
    max_tokens: TokenLimit | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: NotYet = None
    add_special_tokens: Literal[True] | None = None

    @model_validator(mode="before")
    @classmethod
    def _prompt_may_be_left_out(cls, value: Any) -> Any:
        """Beside `prompt_embeds`, which take its place."""
        if isinstance(value, dict) and value.get("prompt_embeds") is not None and value.get("prompt") is None:
            return {**value, "prompt": ""}
        return value
