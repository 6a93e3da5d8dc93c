"""The arguments of one compilation, as one frozen record.

Imported by the command line: nothing here may load numpy or more. `plan.py` tells which combinations make sense.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.bundle.specs import ModelTask
from engine.files import is_gguf
from engine.isolation.machine import usable_memory

BLOCKS = (32, 128)
DEFAULT_PART_MB = 2000


class Target(StrEnum):
    """What the graphs are for."""

    CPU = "cpu"
    X_ELITE = "x-elite"
    X_PLUS = "x-plus"
    X2_ELITE = "x2-elite"
    GEN8_2 = "8-gen2"
    GEN8_3 = "8-gen3"
    GEN8_ELITE = "8-elite"
    GEN8_ELITE_5 = "8-elite-gen5"


class Quant(StrEnum):
    """Methods of quantisation by the name of their file in `engine/compile/quantisation/methods`."""

    FP32 = "fp32"  # CPU only, as are the next three
    INT8 = "int8"
    INT4 = "int4"
    KEEP = "keep"  # blocks as a file has them
    FP16 = "fp16"  # NPU only: everything in half precision
    W4 = "w4"  # NPU only: int4 blocks, half-precision activations
    W8A16 = "w8a16"  # integer graphs: int8 weights, 16-bit activations, 8-bit KV
    W4A16 = "w4a16"  # the same with int4 weights


class Split(StrEnum):
    """Where the network is cut into graphs."""

    NONE = "none"
    LMHEAD = "lmhead"
    LUT_LMHEAD = "lut+lmhead"
    HOST_LMHEAD = "host+lmhead"  # NPU only: the host looks tokens up, as in GenieX bundles


class Layout(StrEnum):
    """What a step is made of."""

    POOL = "pool"  # every row attends over the columns of all sequences, in one graph: what an NPU runs
    SEGMENTS = "segments"  # linear graphs over all rows, an attention run for each sequence between them: CPU only
    FUSED = "fused"  # a prompt's rows and decode rows in one graph, each sequence with a cache of its own


class KvType(StrEnum):
    """What keys and values are stored as."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"  # segments whose query heads share key heads: half the memory
    INT8 = "int8"  # segments: a scale for each channel


class KvUpdate(StrEnum):
    """Who writes new keys and values into the caches of fused graphs."""

    GRAPH = "graph"  # updated caches are outputs
    HOST = "host"


class QualityLevel(StrEnum):
    """How codes and scales are chosen."""

    FAST = "fast"  # rounded to nearest
    GOOD = "good"  # by what the layers' outputs lose on calibration text
    BEST = "best"  # on twice as much text; on an NPU with more matrices of 8 bits


EMBEDDING_BITS = (32, 16, 8, 4)
DEFAULT_SPLIT = Split.LMHEAD


@dataclass(frozen=True, slots=True)
class CompileArguments:
    """One compilation.

    layout: None = as target, shapes and activations allow. split: of pool graphs, None = the LM head apart.
    kv: of the caches of segments, None = int8 where that loses next to nothing, else floats of the size that is faster.
    head: how the LM head is stored, None = as the method of the layers has it. embedding_bits: bits of one number of
    the embedding table, 0 = 32 for fp32, else 16.
    rows x context, or rows with same_past (contexts become past + rows), make fixed variants; none of them makes
    free-shape graphs. whole_context: instead of these, graphs of so many rows that keep no cache and read a whole
    sequence at every step. max_context in tokens, 0 = what the checkpoint was made for. parity_tokens: length of the
    text the finished bundle is checked with, 0 = as `parity.enough_tokens` says. NPU only: share_weights puts all
    variants of a part into one binary, part_mb is the size in MB (10^6 bytes) from which the layers are cut into
    several binaries.
    calibration: texts to measure on, None = built-in ones. decode_slots: sequences that a fused graph decodes
    beside a prompt, rows included. kv_update: of fused graphs, None = as `plan.py` says.
    lora: graphs of segments take low-rank adapters as inputs. task: what the bundle is for, None = as the files say.
    quality: None = good where there is something to choose, else fast. amx: matrices of 8 bits are for processors
    with Intel's AMX, None = where this one has it.
    """

    source: Path
    output: Path
    target: Target = Target.CPU
    quant: Quant = Quant.INT4
    split: Split | None = None
    block: int = 32
    asymmetric: bool = False
    embedding_bits: int = 0
    head: Quant | None = None
    rows: tuple[int, ...] = ()
    context: tuple[int, ...] = ()
    same_past: tuple[int, ...] = ()
    whole_context: tuple[int, ...] = ()
    max_context: int = 0
    parity_tokens: int = 0
    force: bool = False
    name: str = ""
    share_weights: bool = True
    part_mb: int = DEFAULT_PART_MB
    calibration: Path | None = None
    layout: Layout | None = None
    kv: KvType | None = None
    decode_slots: int = 1
    kv_update: KvUpdate | None = None
    lora: bool = False
    task: ModelTask | None = None
    quality: QualityLevel | None = QualityLevel.FAST
    amx: bool | None = None

    @property
    def is_npu(self) -> bool:
        """Whether the graphs become context binaries of an NPU."""
        return self.target is not Target.CPU


def default_quant(target: Target, source: Path) -> Quant:
    """The method when --quant is left out."""
    from engine.compile.sources.speech.source import is_speech  # noqa: PLC0415 (loads numpy, as do the next two)
    from engine.models.encoders import is_encoder_folder  # noqa: PLC0415
    from engine.models.stored_codes import checkpoint_quant  # noqa: PLC0415

    if target is not Target.CPU:
        return Quant.FP16 if is_encoder_folder(source) or is_speech(source) else Quant.W4
    return Quant.KEEP if is_gguf(source) else Quant(checkpoint_quant(source, usable_memory()))


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
    """One export of `source` into the new folder `output`. block: rows of a sequence in a step, 0 = as config.json
    says, else 4. context: columns of the cache. quant: None = the backend's first. shared_masks: the masks' first
    dimension is 1 instead of the number of layers."""

    source: Path
    output: Path
    context: int
    block: int = 0
    batch: int = 1
    backend: Backend = Backend.CPU
    quant: Quant | None = None
    shared_masks: bool = False
