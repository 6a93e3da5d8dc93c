"""From checkpoint tensors to stored matrices and vectors: some rows of one matrix in memory at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from engine.compile.arguments import CompileArguments
from engine.compile.quantisation.methods.blocks import Blocks
from engine.compile.quantisation.methods.method import FloatMatrix, Method
from engine.compile.quantisation.methods.table import method_of, wide_method
from engine.compile.quantisation.packed import PackedLinear, PackedNorm
from engine.compile.quantisation.weight_file import StoredTensor, WeightFile
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.models.network import Network

_SLICE_ITEMS = 1 << 21  # numbers worked on at once: small enough for the caches, large enough for numpy


@dataclass(frozen=True, slots=True)
class LinearSource:
    """Matrices [outputs, inputs] stacked along outputs. The first `scaled_rows` outputs are multiplied by `scale`.
    parts, is_robust: as `FloatMatrix` has them."""

    names: tuple[str, ...]
    outputs: tuple[int, ...]
    inputs: int
    has_bias: bool = False
    scaled_rows: int = 0
    scale: float = 1.0
    parts: int = 1
    is_robust: bool = False

    @property
    def stored(self) -> list[tuple[str, int]]:
        """Name and outputs of each stored matrix: as listed, or all outputs of one that the checkpoint stacks."""
        outputs = self.outputs if len(self.names) == len(self.outputs) else (sum(self.outputs),)
        return list(zip(self.names, outputs, strict=True))


class LinearPacker:
    """Writes single matrices and vectors. `on_read` is told the stored bytes of every tensor read. wide: tensors of the
    layers that get 8 bits where others have 4."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        network: Network,
        arguments: CompileArguments,
        on_read: Callable[[int], None],
        wide: frozenset[str] = frozenset(),
    ) -> None:
        self.checkpoint, self.network, self.arguments = checkpoint, network, arguments
        self.on_read = on_read
        self._wide = wide

    def norm(self, module: str, size: int) -> Float32:
        return self.vector(f"{module}.weight", size) + np.float32(self.network.details.norm_offset)

    def vector(self, name: str, size: int) -> Float32:
        self.on_read(self.checkpoint.stored_bytes(name))
        return self.checkpoint.tensor(name, (size,))

    def layer_norm(self, file: WeightFile, name: str, module: str, size: int) -> PackedNorm:
        """Write the weight and the bias of a norm."""
        weight, bias = (self.vector(f"{module}.{part}", size) for part in ("weight", "bias"))
        return PackedNorm(file.add(f"{name}_weight", weight), file.add(f"{name}_bias", bias))

    def linear(
        self, file: WeightFile, small: WeightFile, name: str, source: LinearSource, method: Method | None = None
    ) -> PackedLinear:
        """Write the matrix of a linear layer into `file`, its bias into `small`. method: None = the arguments'."""
        bias = small.add(f"{name}_bias", self._bias(source)) if source.has_bias else None
        is_wide = all(f"{each}.weight" in self._wide for each in source.names)
        method = method or (wide_method if is_wide else method_of)(self.arguments)
        return self.store(file, name, source, method, bias, keeps_coarse=False)

    def store(
        self,
        file: WeightFile,
        name: str,
        source: LinearSource,
        method: Method,
        bias: StoredTensor | None = None,
        keeps_coarse: bool = True,
    ) -> PackedLinear:
        """Write a matrix as the method has it; its bias is written. keeps_coarse: codes that lose little are kept too,
        as a table of rows needs them; else they are rounded in the form that is fastest."""
        forms = {self.checkpoint.form(f"{each}.weight") for each in source.names}
        form = forms.pop() if len(forms) == 1 else None
        form = None if form is not None and form.is_coarse and not keeps_coarse else form
        kept = self._runs(source, keeps=True, keeps_order=form is not None)
        sizes, marks = (sum(source.outputs), source.inputs), (source.parts, source.is_robust)
        matrix = FloatMatrix(name, *sizes, self.slices(source), kept, form, *marks)
        return PackedLinear(method, method.store(file, matrix, self.arguments), bias)

    def _bias(self, source: LinearSource) -> Float32:
        bias = np.concatenate([self.vector(f"{name}.bias", size) for name, size in source.stored])
        bias[: source.scaled_rows] *= np.float32(source.scale)
        return bias

    def slices(self, source: LinearSource) -> Iterator[Float32]:
        """The stacked matrix in runs of rows, scaled; nothing is kept."""
        return cast(Iterator[Float32], self._runs(source))

    def _runs(self, source: LinearSource, keeps: bool = False, keeps_order: bool = False) -> Iterator[Float32 | Blocks]:
        """keeps: runs that are stored as blocks come as such, with their codes, but not, unless keeps_order,
        those whose inputs stand in another order."""
        step, row = max(1, _SLICE_ITEMS // source.inputs), 0
        for name, size in source.stored:
            tensor = f"{name}.weight"
            self.checkpoint.require(tensor, (size, source.inputs))
            row_bytes, form = self.checkpoint.stored_bytes(tensor) // size, self.checkpoint.form(tensor)
            is_kept = keeps and form is not None and (keeps_order or not form.order)
            for start in range(0, size, step):
                stop = min(start + step, size)
                scaled = np.arange(row, row + stop - start)[:, None] < source.scaled_rows
                factors = np.where(scaled, np.float32(source.scale), np.float32(1.0))
                row += stop - start
                blocks = self.checkpoint.blocks(tensor, start, stop) if is_kept else None
                rows = self.checkpoint.rows(tensor, start, stop) if blocks is None else blocks.scaled(factors)
                self.on_read(row_bytes * (stop - start))
                yield rows * factors if isinstance(rows, np.ndarray) and not np.all(factors == 1) else rows
