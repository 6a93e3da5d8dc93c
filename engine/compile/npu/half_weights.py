"""The weight file of an NPU part: what arrives as float32 is stored in half precision."""

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from numpy.typing import NDArray

from engine.compile.weight_file import StoredTensor, WeightFile
from engine.errors import CompileError

HALF_LIMIT = float(np.finfo(np.float16).max)


class HalfWeightFile(WeightFile):
    """Same layout as `WeightFile`. CompileError names a tensor that half precision cannot hold."""

    def add_chunks(
        self, name: str, onnx_type: int, dims: tuple[int, ...], chunks: Iterable[NDArray[np.generic]]
    ) -> StoredTensor:
        """Append one tensor; float32 pieces are rounded to float16."""
        if onnx_type != onnx.TensorProto.FLOAT:
            return super().add_chunks(name, onnx_type, dims, chunks)
        return super().add_chunks(name, onnx.TensorProto.FLOAT16, dims, _halves(name, chunks))


def _halves(name: str, chunks: Iterable[NDArray[np.generic]]) -> Iterator[NDArray[np.float16]]:
    for chunk in chunks:
        if chunk.size and max(float(chunk.max()), -float(chunk.min())) > HALF_LIMIT:
            raise CompileError(f"tensor {name} has values beyond {HALF_LIMIT:.0f}, which half precision cannot hold")
        yield chunk.astype(np.float16)
