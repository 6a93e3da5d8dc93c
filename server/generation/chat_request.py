"""The fields that chats and completions share, and the body of a chat, to which every chat format is translated."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from server.http import fields
from server.http.fields import MAX_TOKENS, Body, Name, NotYet, Probability, TextOrList, TextOrObject

# The whole form is bounded by grammar_limit_bytes too.
SchemaText = Annotated[str, StringConstraints(min_length=1, max_length=1_048_576)]
Schema = TextOrObject[SchemaText, dict[str, Any]]
RegexText = Annotated[str, StringConstraints(min_length=1, max_length=16_384)]
GrammarText = Annotated[str, StringConstraints(min_length=1, max_length=262_144)]
OptionText = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
OptionTexts = Annotated[list[OptionText], Field(min_length=1, max_length=8192, fail_fast=True)]


class StructuredOutputs(Body):
    """vLLM's field for the form of an answer; exactly one of the first five."""

    json_schema: Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: RegexText | None = None
    choice: OptionTexts | None = None
    grammar: GrammarText | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None

    # Known, not honoured.
    structural_tag: NotYet = None
    disable_additional_properties: Literal[False] | None = None
    disable_fallback: bool | None = None


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class NamedSchema(Body):
    """A schema; strict refuses keywords that cannot be enforced, otherwise they are ignored."""

    name: ToolName
    description: Annotated[str, StringConstraints(max_length=65_536)] | None = None
    definition: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: NamedSchema

    @classmethod
    def of(cls, definition: dict[str, Any], strict: bool | None) -> "JsonSchemaFormat":
        """What another format asks for; the definition was validated there."""
        named = NamedSchema.model_construct(name="output", definition=definition, strict=strict)
        return cls.model_construct(type="json_schema", json_schema=named)


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
MAX_CHOICES = 128


class StreamOptions(Body):
    """Options that only make sense with `stream`."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: bool | None = None


StopText = Annotated[str, StringConstraints(min_length=1, max_length=512)]
StopTexts = Annotated[list[StopText], Field(max_length=16, fail_fast=True)]
Biases = Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=300)]
Stop = TextOrList[StopText, StopTexts]


class SamplingBody(Body):
    """How tokens are chosen, in every format that has OpenAI's names; null means the default. The rest is vLLM's."""

    model: Name
    temperature: fields.Temperature | None = None
    top_p: Probability | None = None
    seed: fields.Seed | None = None
    frequency_penalty: fields.Penalty | None = None
    presence_penalty: fields.Penalty | None = None
    user: fields.User | None = None
    top_k: fields.TopK | None = None
    min_p: Probability | None = None
    repetition_penalty: fields.RepetitionPenalty | None = None
    priority: fields.Priority | None = None

    # How a block-diffusion model denoises.
    denoising_steps: fields.DenoisingSteps | None = None
    unmasking_strategy: fields.UnmaskingStrategy | None = None
    confidence_threshold: Probability | None = None
    entropy_bound: fields.EntropyBound | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SamplingBody.model_fields}


class GenerationBody(SamplingBody):
    """Fields that both generation routes share."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | None = None
    logit_bias: Biases | None = None

    # Extensions with vLLM's names.
    stop_token_ids: Annotated[list[fields.TokenId], Field(max_length=64, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    min_tokens: fields.TokenLimit | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: RegexText | None = None
    guided_choice: OptionTexts | None = None
    guided_grammar: GrammarText | None = None

    # Known, not honoured.
    prompt_logprobs: NotYet = None
    bad_words: NotYet = None


class TextPart(Body):
    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = None  # a hint for other servers; here every prefix is kept


TextParts = Annotated[list[TextPart], Field(min_length=1, max_length=1024, fail_fast=True)]
Content = TextOrList[str, TextParts]
MAX_URL_CHARACTERS = 32 * 1024 * 1024  # the body's own limit is lower unless it was raised
ImageText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL_CHARACTERS)]


class ImageUrl(Body):
    """Where an image is, or the image itself as a data URL. detail low: it is looked at as one tile."""

    url: ImageText
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Body):
    type: Literal["image_url"]
    image_url: ImageUrl
    cache_control: dict[str, Any] | None = None  # as with texts


UserPart = Annotated[TextPart | ImagePart, Field(discriminator="type")]
UserParts = Annotated[list[UserPart], Field(min_length=1, max_length=1024, fail_fast=True)]
UserContent = TextOrList[str, UserParts]


class InstructionMessage(Body):
    """A system or developer message; both reach the chat template as `system`."""

    role: Literal["system", "developer"]
    content: Content
    name: Name | None = None


class UserMessage(Body):
    role: Literal["user"]
    content: UserContent
    name: Name | None = None


class CalledFunction(Body):
    """Name and JSON text of the arguments of a function that was called."""

    name: Name
    arguments: str
    parsed_arguments: Any = None  # what an SDK made of them; it sends that back


class ToolCall(Body):
    """One call an assistant message made. `index` is where a stream helper put it; the list already has that order."""

    id: Name
    type: Literal["function"]
    function: CalledFunction
    index: Annotated[int, Field(ge=0)] | None = None


class AssistantMessage(Body):
    """What the model said earlier, as an SDK sends it back."""

    role: Literal["assistant"]
    content: Content | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128, fail_fast=True)] | None = None
    reasoning_content: str | None = None
    refusal: NotYet = None
    audio: NotYet = None
    function_call: NotYet = None
    parsed: Any = None  # as `parsed_arguments`
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    provider_specific_fields: dict[str, Any] | None = None  # litellm's notes on an answer; it sends them back


class ToolMessage(Body):
    """The result of a tool call. Older clients repeat the function's name."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Name
    name: Name | None = None


Message = Annotated[InstructionMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class FunctionTool(Body):
    """What a function does and takes; `parameters` is a JSON schema, enforced when the function is strict."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: FunctionTool

    @classmethod
    def of(cls, name: str, description: str | None, parameters: dict[str, Any] | None, strict: bool | None) -> "Tool":
        """A tool of another format, whose fields were validated there."""
        own: dict[str, Any] = {"name": name, "description": description, "parameters": parameters, "strict": strict}
        return cls.model_construct(type="function", function=FunctionTool.model_construct(**own))


class ChosenFunction(Body):
    name: Name


class NamedToolChoice(Body):
    type: Literal["function"]
    function: ChosenFunction

    @classmethod
    def of(cls, name: str) -> "NamedToolChoice":
        return cls(type="function", function=ChosenFunction(name=name))


ToolChoice = TextOrObject[Literal["none", "auto", "required"], NamedToolChoice]


class PredictedContent(Body):
    """What most of the answer is expected to be; it comes sooner where that is right, and is the same either way."""

    type: Literal["content"]
    content: Content


class ChatRequest(GenerationBody):
    messages: Annotated[list[Message], Field(min_length=1, max_length=fields.MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: fields.TopLogprobs | None = None
    tools: Annotated[list[Tool], Field(max_length=fields.MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prediction: PredictedContent | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None

    # What the chat template is told, and how long the model may think.
    reasoning_effort: fields.Effort | None = None
    thinking_token_budget: fields.TokenLimit | None = None
    chat_template_kwargs: fields.TemplateOptions | None = None
    add_generation_prompt: bool | None = None

    # Accepted as OpenAI accepts them: nothing of them is visible in the answer.
    metadata: fields.Metadata | None = None
    store: bool | None = None
    service_tier: fields.ServiceTier | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None

    # Known, not honoured.
    functions: NotYet = None
    function_call: NotYet = None
    verbosity: Literal["medium"] | None = None
    audio: NotYet = None
    web_search_options: NotYet = None
    prompt_cache_retention: NotYet = None
    chat_template: NotYet = None
    continue_final_message: Literal[False] | None = None
    echo: Literal[False] | None = None
