"""A folder with codes in place of weights, under the names that its weights would have."""

from abc import abstractmethod

from engine.compile.quantisation.methods.blocks import BlockForm, Blocks
from engine.compile.sources.checkpoint import CheckpointView, Float32, SafetensorsCheckpoint, finite
from engine.compile.sources.quantised.matrices import StoredMatrix, opened
from engine.errors import CompileError
from engine.models.stored_codes import StoredCodes

WEIGHT = ".weight"
# Scales of activations and caches, which are rounded here as they come, and marks of formats.
NEEDLESS = (
    ".input_scale",
    ".activation_scale",
    ".input_global_scale",
    ".input_zero_point",
    ".k_scale",
    ".v_scale",
    ".weight_format",
)


class MatricesView(CheckpointView):
    """As `inner`; matrices that it has in other tensors are there under the names of their weights."""

    mismatch = "tensor {} has codes of shape {}, the config makes it {}"

    @abstractmethod
    def matrix(self, name: str) -> StoredMatrix | None:
        """What is read in place of a tensor, None for one that is stored as it is."""

    def __contains__(self, name: str) -> bool:
        return self.matrix(name) is not None or name in self.inner

    def shape(self, name: str) -> tuple[int, ...]:
        matrix = self.matrix(name)
        return self.inner.shape(name) if matrix is None else matrix.shape

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor with its scales."""
        matrix = self.matrix(name)
        return self.inner.stored_bytes(name) if matrix is None else sum(map(self.inner.stored_bytes, matrix.names))

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        matrix = self.matrix(name)
        if matrix is None:
            self.inner.require(name, shape)
        elif matrix.shape != shape:
            raise CompileError(self.mismatch.format(name, matrix.shape, shape))

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        if self.matrix(name) is None:
            return self.inner.tensor(name, shape)
        self.require(name, shape)
        return self.rows(name, 0, shape[0])

    def rows(self, name: str, start: int, stop: int) -> Float32:
        matrix = self.matrix(name)
        return self.inner.rows(name, start, stop) if matrix is None else finite(name, matrix.floats(start, stop))

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        matrix = self.matrix(name)
        blocks = self.inner.blocks(name, start, stop) if matrix is None else matrix.blocks(start, stop)
        if blocks is not None:
            finite(name, blocks.scales)
        return blocks

    def form(self, name: str) -> BlockForm | None:
        matrix = self.matrix(name)
        return self.inner.form(name) if matrix is None else matrix.form


class QuantisedCheckpoint(MatricesView):
    """As `file`, which has matrices as codes. Closes with it."""

    def __init__(self, file: SafetensorsCheckpoint, stored: StoredCodes) -> None:
        super().__init__(file)
        self._file, self._stored = file, stored
        self._opened: dict[str, StoredMatrix | None] = {}

    def __enter__(self) -> "QuantisedCheckpoint":
        self._file.__enter__()
        return self

    def __exit__(self, *exit_info: object) -> None:
        self._file.__exit__(*exit_info)

    def total_bytes(self) -> int:
        return sum(map(self._file.code_bytes, self._file.names()))

    def unused(self) -> list[str]:
        """Names of the tensors that nothing has asked for yet, but for what only other ways of rounding need."""
        return [name for name in self._file.unused() if not name.endswith(NEEDLESS)]

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor with its scales."""
        matrix = self.matrix(name)
        if matrix is None:
            return self._file.stored_bytes(name)
        return sum(self._file.code_bytes(part) for part in matrix.names if part in self._file)

    def matrix(self, name: str) -> StoredMatrix | None:
        if name not in self._opened:
            module = name.removesuffix(WEIGHT)
            self._opened[name] = opened(self._file, module, self._stored) if module != name else None
        return self._opened[name]
