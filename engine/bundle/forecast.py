"""Self-speculation as a manifest lists it: what the model needs to guess its own next tokens."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle.bounds import Name, TokenId

Branch = Annotated[int, Meta(ge=1, le=16)]


class ForecastSpec(msgspec.Struct, frozen=True):
    """A row with the id first_id + i guesses the token i + 2 places behind the row that it follows.

    file: keys and values of `columns` columns, which such rows see before everything else. branches: how many guesses
    follow the newest token, how many each of those, and so on.
    """

    file: Name
    columns: Annotated[int, Meta(ge=1, le=1024)]
    first_id: TokenId
    branches: Annotated[tuple[Branch, ...], Meta(min_length=1, max_length=8)]
