"""A checkpoint seen through another: what a subclass does not change is the inner one's."""

from engine.compile.checkpoint import Checkpoint, Float32
from engine.compile.quantization.blocks import Blocks


class CheckpointView:
    """A `Checkpoint`; every method asks `inner`."""

    def __init__(self, inner: Checkpoint) -> None:
        self.inner = inner

    def __contains__(self, name: str) -> bool:
        return name in self.inner

    def total_bytes(self) -> int:
        """Bytes of all float tensors as stored."""
        return self.inner.total_bytes()

    def unused(self) -> list[str]:
        """Names of the tensors that nothing has asked for yet."""
        return self.inner.unused()

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.inner.shape(name)

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor as stored."""
        return self.inner.stored_bytes(name)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        """A whole tensor as float32."""
        return self.inner.tensor(name, shape)

    def rows(self, name: str, start: int, stop: int) -> Float32:
        """Rows start..stop of a matrix as float32."""
        return self.inner.rows(name, start, stop)

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        """The same rows as stored blocks."""
        return self.inner.blocks(name, start, stop)

    def is_four_bit(self, name: str) -> bool:
        """Whether `blocks` of a matrix have 4 bits."""
        return self.inner.is_four_bit(name)

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        """CompileError unless the tensor is there with this shape."""
        self.inner.require(name, shape)
