"""The fields that chats and completions share."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from server.protocol.fields import (
    MAX_TOKENS,
    Body,
    DenoisingSteps,
    EntropyBound,
    Name,
    NotYet,
    Penalty,
    Priority,
    Probability,
    RepetitionPenalty,
    Seed,
    Temperature,
    TokenId,
    TokenLimit,
    TopK,
    UnmaskingStrategy,
    User,
    text_or_list,
)
from server.protocol.structured_outputs import (
    GrammarText,
    OptionTexts,
    RegexText,
    ResponseFormat,
    Schema,
    StructuredOutputs,
)

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 512
MAX_BIASES = 300
MAX_STOP_IDS = 64
MAX_CHOICES = 128


class StreamOptions(Body):
    """Options that only make sense with `stream`."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: bool | None = None


StopText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopTexts = Annotated[list[StopText], Field(max_length=MAX_STOPS, fail_fast=True)]
Stop = Annotated[
    Annotated[StopText, Tag("text")] | Annotated[StopTexts, Tag("texts")],
    Discriminator(text_or_list),
]


class GenerationBody(Body):
    """Fields that both generation routes share. Defaults are OpenAI's; null means the default."""

    model: Name
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASES)] | None = (
        None
    )
    user: User | None = None

    # Extensions with vLLM's names.
    top_k: TopK | None = None
    min_p: Probability | None = None
    repetition_penalty: RepetitionPenalty | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    min_tokens: TokenLimit | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Priority | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: RegexText | None = None
    guided_choice: OptionTexts | None = None
    guided_grammar: GrammarText | None = None

    # How a block-diffusion model denoises.
    denoising_steps: DenoisingSteps | None = None
    unmasking_strategy: UnmaskingStrategy | None = None
    confidence_threshold: Probability | None = None
    entropy_bound: EntropyBound | None = None

    # Known, not honoured.
    prompt_logprobs: NotYet = None
    bad_words: NotYet = None
