"""A folder with codes in place of weights, under the names that its weights would have."""

from engine.compile.quantisation.methods.blocks import BlockForm, Blocks
from engine.compile.sources.checkpoint import FLOAT8, CheckpointView, Float32, SafetensorsCheckpoint, finite
from engine.compile.sources.quantised.matrices import (
    StoredMatrix,
    awq,
    float4,
    float8,
    gptq,
    pack_quantized,
    signed_bytes,
    stacked_float4,
    table4,
)
from engine.errors import CompileError
from engine.models.stored_codes import CodeFormat, StoredCodes

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


class QuantisedCheckpoint(CheckpointView):
    """As `file`; matrices that it has as codes are there under the names of their weights. Closes with `file`."""

    def __init__(self, file: SafetensorsCheckpoint, stored: StoredCodes) -> None:
        super().__init__(file)
        self._file = file
        self._stored = stored
        self._opened: dict[str, StoredMatrix | None] = {}

    def __enter__(self) -> "QuantisedCheckpoint":
        self._file.__enter__()
        return self

    def __exit__(self, *exit_info: object) -> None:
        self._file.__exit__(*exit_info)

    def __contains__(self, name: str) -> bool:
        return self._matrix(name) is not None or name in self._file

    def total_bytes(self) -> int:
        return sum(map(self._file.code_bytes, self._file.names()))

    def unused(self) -> list[str]:
        """Names of the tensors that nothing has asked for yet, but for what only other ways of rounding need."""
        return [name for name in self._file.unused() if not name.endswith(NEEDLESS)]

    def shape(self, name: str) -> tuple[int, ...]:
        matrix = self._matrix(name)
        return self._file.shape(name) if matrix is None else matrix.shape

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor with its scales."""
        matrix = self._matrix(name)
        return self._file.stored_bytes(name) if matrix is None else sum(map(self._file.code_bytes, matrix.names))

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        matrix = self._matrix(name)
        if matrix is None:
            self._file.require(name, shape)
        elif matrix.shape != shape:
            raise CompileError(f"tensor {name} has codes of shape {matrix.shape}, the config makes it {shape}")

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        if self._matrix(name) is None:
            return self._file.tensor(name, shape)
        self.require(name, shape)
        return self.rows(name, 0, shape[0])

    def rows(self, name: str, start: int, stop: int) -> Float32:
        matrix = self._matrix(name)
        return self._file.rows(name, start, stop) if matrix is None else finite(name, matrix.floats(start, stop))

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        matrix = self._matrix(name)
        blocks = None if matrix is None else matrix.blocks(start, stop)
        if blocks is not None:
            finite(name, blocks.scales)
        return blocks

    def form(self, name: str) -> BlockForm | None:
        matrix = self._matrix(name)
        return None if matrix is None else matrix.form

    def _matrix(self, name: str) -> StoredMatrix | None:
        if name not in self._opened:
            self._opened[name] = self._open(name.removesuffix(WEIGHT)) if name.endswith(WEIGHT) else None
        return self._opened[name]

    def _open(self, module: str) -> StoredMatrix | None:
        """By the tensors that stand under a module's name; None for floats."""
        file, weight = self._file, f"{module}{WEIGHT}"
        if f"{module}.qweight" in file:
            return (awq if self._stored.format is CodeFormat.AWQ else gptq)(file, module, self._stored)
        if f"{module}.weight_packed" in file:
            is_float = file.type_of(f"{module}.weight_packed") == "U8"
            return float4(file, module) if is_float else pack_quantized(file, module)
        if f"{module}_blocks" in file:
            return stacked_float4(file, module)
        kind = file.type_of(weight) if weight in file else ""
        if kind == "I8":
            return signed_bytes(file, module)
        if kind == "U8":
            return float4(file, module) if f"{module}.weight_scale" in file else table4(file, module)
        return float8(file, module, self._stored) if kind in FLOAT8 else None
