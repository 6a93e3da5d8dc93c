"""How the 4-bit codes of a bundle were chosen, what that cost and what it won."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle.bounds import Count, Name, Text

Share = Annotated[float, Meta(ge=0)]


class RoundingError(msgspec.Struct, frozen=True):
    """Squared error of a kind of matrices' outputs on calibration text, as a share of the outputs' squares: when
    weights are rounded to nearest, and as their codes were chosen."""

    nearest: Share
    chosen: Share


class LearningError(msgspec.Struct, frozen=True):
    """An error on calibration text that was held back: as codes were chosen, and after they were learned."""

    chosen: Share
    learned: Share


class QualitySpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """level: of `--quality`. methods: in the order in which they were used. tokens: of calibration text.

    peak_bytes: most memory of the compiler by then, 0 where unknown. errors: by kind of matrix, such as "down".
    learned: squared error of what a layer hands on as a share of its squares, by "layer N", and mean KL in nats of the
    whole model's predictions as "KL"; empty where nothing is learned.
    """

    level: Name
    methods: Annotated[tuple[Text, ...], Meta(max_length=64)]
    tokens: Count
    seconds: Annotated[float, Meta(ge=0)]
    peak_bytes: Count = 0
    errors: dict[Name, RoundingError] = {}
    learned: dict[Name, LearningError] = {}
