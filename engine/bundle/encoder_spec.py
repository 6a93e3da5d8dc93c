"""What an encoder's bundle says beside its graphs: how it counts positions and types, and its score head."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle.bounds import Text

TokenTypes = Annotated[int, Meta(ge=1, le=1024)]
PositionOffset = Annotated[int, Meta(ge=0, le=1024)]


class EncoderSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a model that reads whole texts in both directions and generates nothing.

    token_types: token type ids are below it. position_offset: the position of a text's first token. score_head: the
    file of what makes one number of a pair of texts, "" = there is none.
    """

    token_types: TokenTypes
    position_offset: PositionOffset = 0
    score_head: Text = ""
