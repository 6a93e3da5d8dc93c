"""What an encoder's bundle says beside its graphs: how it counts positions and types, and its score head."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle.bounds import Text

Scores = Annotated[int, Meta(ge=0, le=1024)]
TokenTypes = Annotated[int, Meta(ge=1, le=1024)]
PositionOffset = Annotated[int, Meta(ge=0, le=1024)]


class EncoderSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a model that reads whole texts in both directions and generates nothing.

    token_types: token type ids are below it. position_offset: the position of a text's first token. scores: numbers
    that the score head makes of a pair of texts, 0 = there is none; score_head: its file, "" = none.
    """

    token_types: TokenTypes
    position_offset: PositionOffset = 0
    scores: Scores = 0
    score_head: Text = ""
