"""Fields that ask for the form of an answer: OpenAI's `response_format`, vLLM's `structured_outputs` and `guided_*`."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from server.protocol.fields import Body, NotYet, text_or_object

MAX_REGEX_CHARACTERS = 16_384
MAX_GRAMMAR_CHARACTERS = 262_144
MAX_SCHEMA_CHARACTERS = 1_048_576  # of a schema given as text; the whole form is bounded by grammar_limit_bytes
MAX_OPTIONS = 8192
MAX_OPTION_CHARACTERS = 4096

SchemaText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_SCHEMA_CHARACTERS)]
Schema = Annotated[
    Annotated[SchemaText, Tag("text")] | Annotated[dict[str, Any], Tag("object")], Discriminator(text_or_object)
]
RegexText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_REGEX_CHARACTERS)]
GrammarText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)]
OptionText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_OPTION_CHARACTERS)]
OptionTexts = Annotated[list[OptionText], Field(min_length=1, max_length=MAX_OPTIONS, fail_fast=True)]


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
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """A JSON object."""

    type: Literal["json_object"]


SchemaName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class NamedSchema(Body):
    """A schema; strict refuses keywords that cannot be enforced, otherwise they are ignored."""

    name: SchemaName
    description: Annotated[str, StringConstraints(max_length=65_536)] | None = None
    definition: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Body):
    """A JSON value that a schema accepts."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
