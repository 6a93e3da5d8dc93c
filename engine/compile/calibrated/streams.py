"""Hidden states of all calibration texts, in two forms, as they go from layer to layer."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.compile.checkpoint import Float32


@dataclass(frozen=True, slots=True)
class Streams:
    """Of each text a matrix [tokens, width]: as the chosen codes give it, and as the checkpoint's floats do."""

    chosen: list[Float32]
    floats: list[Float32]

    def map(self, step: Callable[..., Float32], *others: "Streams") -> "Streams":
        """What a step makes of each text, and of the same text in other streams."""
        chosen = [step(*texts) for texts in zip(self.chosen, *(other.chosen for other in others), strict=True)]
        floats = [step(*texts) for texts in zip(self.floats, *(other.floats for other in others), strict=True)]
        return Streams(chosen, floats)


@dataclass(frozen=True, slots=True)
class Linear:
    """A stacked matrix [outputs, inputs] and what its codes stand for; its bias [outputs], 0 where it has none."""

    weight: Float32
    coded: Float32
    bias: Float32

    def then(self, inputs: Streams, step: Callable[..., Float32], *others: Streams) -> Streams:
        """`step` of each product and the same text in other streams; one product is in memory at a time."""

        def with_weight(weight: Float32) -> Callable[..., Float32]:
            return lambda x, *rest: step(x @ weight.T + self.bias, *rest)

        over_chosen, over_floats = with_weight(self.coded), with_weight(self.weight)
        chosen = [over_chosen(*texts) for texts in zip(inputs.chosen, *(o.chosen for o in others), strict=True)]
        floats = [over_floats(*texts) for texts in zip(inputs.floats, *(o.floats for o in others), strict=True)]
        return Streams(chosen, floats)
