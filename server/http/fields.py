"""What bodies and answers are made of: their base classes, the limits of fields, and field types that formats share.
Strict: no type is coerced, no unknown field passes. A field that is not honoured has the narrow type that is, so that
anything else is refused by name. Rules between fields are in `server/generation/params.py`."""

from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import BaseModel, Discriminator, Field, GetCoreSchemaHandler, StringConstraints, Tag
from pydantic_core import CoreSchema, core_schema

MAX_MESSAGES = 4096
MAX_TOP_LOGPROBS = 20
MAX_TOOLS = 128
MAX_TEMPLATE_OPTIONS = 16
MAX_TOKENS = 2**31 - 1
NotYet: TypeAlias = None  # the type of a field this version does not honour: only null is accepted
Name = Annotated[str, StringConstraints(max_length=256)]
RepetitionPenalty = Annotated[float, Field(ge=0.0001, le=10)]  # logits divided by much less are no float32 any more
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Temperature = Annotated[float, Field(ge=0, le=2)]
Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TopK = Annotated[int, Field(ge=-1, le=MAX_TOKENS)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
TokenLimit = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
DenoisingSteps = Annotated[int, Field(ge=1, le=1024)]
UnmaskingStrategy = Literal["dynamic_confidence", "static_confidence", "sequential", "entropy_bound"]
EntropyBound = Annotated[float, Field(ge=0, le=100)]
User = Annotated[str, StringConstraints(max_length=1024)]
MetadataText = Annotated[str, StringConstraints(max_length=512)]
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
Metadata = Annotated[dict[MetadataKey, MetadataText], Field(max_length=16)]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
TemplateOption = Annotated[str, StringConstraints(max_length=64)]
TemplateOptions = Annotated[dict[TemplateOption, Any], Field(max_length=MAX_TEMPLATE_OPTIONS)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Text = TypeVar("Text")
Other = TypeVar("Other")


class Body(BaseModel, strict=True, extra="forbid", allow_inf_nan=False):
    """Base of request bodies and their parts: strict, and no unknown field."""


class Answer(msgspec.Struct):
    """Base of answers and their parts: writers build them, msgspec writes them, OpenAPI describes them by their fields.
    A field whose default is UNSET is left out of the answer when nobody gave it; every other one is always there."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """As pydantic describes an object with these keys and no other."""
        hints = get_type_hints(cls, include_extras=True)
        fields = {
            field.encode_name: core_schema.typed_dict_field(
                handler.generate_schema(_without_unset(hints[field.name])), required=field.default is not UNSET
            )
            for field in msgspec.structs.fields(cls)
            if hints[field.name] is not UnsetType  # of another of these answers
        }
        ref = f"{cls.__module__}.{cls.__qualname__}:{id(cls)}"
        return core_schema.typed_dict_schema(fields, cls=cls, extra_behavior="forbid", ref=ref)


def _without_unset(hint: Any) -> Any:
    kinds = [kind for kind in get_args(hint) if kind is not UnsetType]
    return hint if UnsetType not in get_args(hint) else Union[tuple(kinds)]  # noqa: UP007 (of as many as there are)


def text_or_list(value: object) -> str:
    return "texts" if isinstance(value, list) else "text"


def texts_or_ids(value: object) -> str:
    """Tag of a field of texts or of token ids, told from its first element; the rest is checked against that type."""
    if not isinstance(value, list):
        return "text"
    first = value[0] if value else ""
    return "id_lists" if isinstance(first, list) else "ids" if isinstance(first, int) else "texts"


def text_or_object(value: object) -> str:
    return "text" if isinstance(value, str) else "object"


TextOrList = Annotated[Annotated[Text, Tag("text")] | Annotated[Other, Tag("texts")], Discriminator(text_or_list)]
TextOrObject = Annotated[Annotated[Text, Tag("text")] | Annotated[Other, Tag("object")], Discriminator(text_or_object)]
