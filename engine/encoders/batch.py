"""Several texts in the rows of one pass: ids, token types, positions, and who sees whom."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class EncoderText:
    """One text as tokens, specials included. types: a token type for each, () = all of type 0."""

    ids: tuple[int, ...]
    types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """N rows. ids, types, places: [N], a row's place in its own text; texts: [N], which text a row belongs to.

    Rows behind the last text belong to one more, so that they too see something. spans: of each text in order.
    """

    ids: Ids
    types: Ids
    places: Ids
    texts: Ids
    spans: tuple[slice, ...]

    @property
    def visible(self) -> NDArray[np.bool_]:
        """[N, N]: whether a row sees a column: those of its own text, in both directions."""
        return np.equal.outer(self.texts, self.texts)


def pair_types(ids: tuple[int, ...], middle: tuple[int, ...]) -> tuple[int, ...]:
    """0 up to the tokens between two texts and including them, 1 behind. ValueError when they are not there."""
    for start in range(len(ids) - len(middle) + 1):
        if ids[start : start + len(middle)] == middle:
            first = start + len(middle)
            return (0,) * first + (1,) * (len(ids) - first)
    raise ValueError("a pair of texts is wanted, and there is one text")


def pack_texts(texts: Sequence[EncoderText], rows: int) -> EncoderBatch:
    """One text behind the other in `rows` rows. ValueError when they do not fit."""
    ids, types, places = (np.zeros(rows, np.int32) for _ in range(3))
    owners = np.full(rows, len(texts), np.int32)
    spans, start = [], 0
    for index, text in enumerate(texts):
        span = slice(start, start + len(text.ids))
        if span.stop > rows:
            raise ValueError(f"{span.stop} tokens do not fit {rows} rows")
        ids[span] = text.ids
        types[span] = text.types or 0
        places[span] = np.arange(len(text.ids))
        owners[span] = index
        spans.append(span)
        start = span.stop
    return EncoderBatch(ids, types, places, owners, tuple(spans))
