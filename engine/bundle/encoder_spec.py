"""What an encoder's bundle says beside its graphs: how rows become one vector, or scores."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle.bounds import Text

Labels = Annotated[int, Meta(ge=0, le=1024)]
TokenTypes = Annotated[int, Meta(ge=1, le=1024)]
PositionOffset = Annotated[int, Meta(ge=0, le=1024)]


class Pooling(StrEnum):
    """How the hidden states of a text's rows become one vector."""

    MEAN = "mean"
    CLS = "cls"  # the first row
    LAST = "last"


class EncoderSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a model that reads whole texts in both directions and generates nothing.

    normalize: vectors get length 1. token_types: token type ids are below it. position_offset: the position of a text's
    first token. prompts: what is written in front of a text, by the name of its task; default_prompt: the name of the
    one that texts get when no task is told, "" = none. labels: scores of a pair of texts, 0 = the model embeds.
    score_head: the file of the head that gives them, "" where there is none.
    """

    pooling: Pooling
    normalize: bool
    token_types: TokenTypes
    position_offset: PositionOffset = 0
    prompts: Annotated[dict[Text, Text], Meta(max_length=256)] = {}
    default_prompt: Text = ""
    labels: Labels = 0
    score_head: Text = ""
