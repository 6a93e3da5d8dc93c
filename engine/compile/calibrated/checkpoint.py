"""A checkpoint some of whose matrices come with codes that were chosen for them."""

from engine.compile.calibrated.codes_file import CodesFolder
from engine.compile.checkpoint import Checkpoint, Float32
from engine.compile.checkpoint_view import CheckpointView
from engine.compile.quantization.blocks import Blocks


class ChosenCheckpoint(CheckpointView):
    """As `inner`, floats included; `blocks` of a matrix in `codes` are those."""

    def __init__(self, inner: Checkpoint, codes: CodesFolder) -> None:
        super().__init__(inner)
        self._codes = codes

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        """Rows start..stop in the chosen codes; of other matrices as they are stored."""
        if name in self._codes:
            return self._codes.read(name, start, stop).packed()
        return self.inner.blocks(name, start, stop)

    def is_four_bit(self, name: str) -> bool:
        """Whether `blocks` of a matrix have 4 bits."""
        return name in self._codes or self.inner.is_four_bit(name)


class CodedCheckpoint(ChosenCheckpoint):
    """The same, but the floats of a matrix in `codes` are those that its codes stand for."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        """What the codes stand for; of other tensors the checkpoint's own floats."""
        return self._codes[name].floats() if name in self._codes else self.inner.tensor(name, shape)

    def rows(self, name: str, start: int, stop: int) -> Float32:
        """The same of some rows."""
        if name in self._codes:
            return self._codes.read(name, start, stop).floats()
        return self.inner.rows(name, start, stop)
