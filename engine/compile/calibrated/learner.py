"""What `--quality best` adds: the seam between choosing codes and learning them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from engine.compile.checkpoint import Checkpoint, Float32
from engine.compile.reference_layers import LayerReader
from engine.compile.rounding.codes import BlockCodes


class Learner(Protocol):
    """Refines codes that were chosen. Codes are by the name of their tensor, in one form before and after."""

    def layer(
        self,
        reader: LayerReader,
        layer: int,
        codes: Mapping[str, BlockCodes],
        inputs: Sequence[Float32],
        targets: Sequence[Float32],
    ) -> Mapping[str, BlockCodes]:
        """Of the matrices of one layer. inputs, targets: of each text [tokens, hidden], the chosen stream before the
        layer and the float stream behind it."""

    def model(
        self, checkpoint: Checkpoint, codes: Mapping[str, BlockCodes], texts: Sequence[Sequence[int]]
    ) -> Mapping[str, BlockCodes]:
        """Of all matrices that have codes, by what the whole model predicts."""
