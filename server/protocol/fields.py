"""What bodies and answers are made of: their base classes, the limits of fields, and field types that formats share.

Strict: no type is coerced, no unknown field passes. A field that is not honoured has the narrow type that is, so that
anything else is refused by name. Rules between fields and limits that depend on settings: `server/requests`.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

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


class Body(BaseModel):
    """Base of request bodies and their parts: strict, and no unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Answer(BaseModel):
    """Base of answers and their parts: no field beside those that are named."""

    model_config = ConfigDict(extra="forbid")


def text_or_list(value: object) -> str:
    """Tag of a field that is a string or a list."""
    return "texts" if isinstance(value, list) else "text"


def text_or_object(value: object) -> str:
    """Tag of a field that is a string or an object."""
    return "text" if isinstance(value, str) else "object"
