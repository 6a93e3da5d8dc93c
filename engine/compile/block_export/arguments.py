"""The arguments of one export. Imported by the command line: nothing here may load another package."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.compile.arguments import Quant


class Backend(StrEnum):
    """Which operators the graph is made of."""

    CPU = "cpu"  # onnxruntime's fused ones
    PORTABLE = "portable"  # plain arithmetic of the ONNX standard, for any runtime
    NPU = "npu"  # half precision, in the forms that Qualcomm's HTP computes well


# The methods of storing weights that each takes, the default first.
QUANTS: dict[Backend, tuple[Quant, ...]] = {
    Backend.CPU: (Quant.FP32, Quant.INT8, Quant.INT4),
    Backend.PORTABLE: (Quant.FP32,),
    Backend.NPU: (Quant.FP16, Quant.W4),
}


@dataclass(frozen=True, slots=True)
class ExportArguments:
    """One export of `source` into the new folder `output`.

    block: rows of a sequence in a pass, 0 = as config.json says, else 4. context: columns of the cache. quant: None =
    the backend's first. shared_masks: the masks' first dimension is 1 instead of the number of layers.
    """

    source: Path
    output: Path
    context: int
    block: int = 0
    batch: int = 1
    backend: Backend = Backend.CPU
    quant: Quant | None = None
    shared_masks: bool = False
