"""What the user asks of the compiler, as one frozen record, checked before any work."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.bundle.variant import PassShape
from engine.errors import CompileError

BLOCKS = (32, 128)
NPU_BLOCK = 32
MAX_PART_MB = 3500  # one context binary must fit the NPU's 32-bit address space
DEFAULT_PART_MB = 2000
MAX_ROWS = 4096
MAX_CONTEXT = 1 << 20
MAX_VARIANTS = 256


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
    """How the weights of a linear layer are stored. Measured figures: `engine/compile/quantize.py`."""

    FP32 = "fp32"
    INT8 = "int8"
    INT4 = "int4"
    FP16 = "fp16"  # NPU only: everything in half precision
    W4 = "w4"  # NPU only: int4 blocks, half-precision activations
    W8A16 = "w8a16"  # integer graphs: int8 weights, 16-bit activations, 8-bit KV
    W4A16 = "w4a16"  # the same with int4 weights


class Split(StrEnum):
    """Where the network is cut into graphs."""

    NONE = "none"
    LMHEAD = "lmhead"
    LUT_LMHEAD = "lut+lmhead"


DEFAULT_EMBEDDING_BITS = dict.fromkeys(Quant, 16) | {Quant.FP32: 32}
INTEGER_GRAPHS = (Quant.W8A16, Quant.W4A16)  # calibrated, fixed shapes only
FREE_QUANTS = (Quant.FP32, Quant.INT8, Quant.INT4)  # CPU only, any shape
TARGET_QUANTS = {Target.CPU: (*FREE_QUANTS, *INTEGER_GRAPHS)}
NPU_QUANTS = (Quant.FP16, Quant.W4, *INTEGER_GRAPHS)
EMBEDDING_BITS = (32, 16, 8, 4)


@dataclass(frozen=True, slots=True)
class CompileArguments:
    """One compilation.

    head: how the LM head is stored, None = as `quant`. embedding_bits: 0 = 32 for fp32, else 16.
    rows x context, or rows with same_past (contexts become past + rows), make fixed variants; none of them makes
    free-shape graphs. max_context in tokens, 0 = what the checkpoint was made for. parity_tokens: length of the
    text the finished bundle is checked with. NPU only: share_weights puts all variants of a part into one binary,
    part_mb is the size in MB (10^6 bytes) from which the layers are cut into several binaries.
    calibration: text file for w8a16 and w4a16, None = built-in text.
    """

    source: Path
    output: Path
    target: Target = Target.CPU
    quant: Quant = Quant.INT4
    split: Split = Split.LMHEAD
    block: int = 32
    asymmetric: bool = False
    embedding_bits: int = 0
    head: Quant | None = None
    rows: tuple[int, ...] = ()
    context: tuple[int, ...] = ()
    same_past: tuple[int, ...] = ()
    max_context: int = 0
    parity_tokens: int = 48
    force: bool = False
    name: str = ""
    share_weights: bool = True
    part_mb: int = DEFAULT_PART_MB
    calibration: Path | None = None

    @property
    def head_quant(self) -> Quant:
        """How the LM head is stored. Four bits with one scale for each output are too few for it."""
        return self.head or (Quant.W8A16 if self.quant is Quant.W4A16 else self.quant)

    @property
    def is_npu(self) -> bool:
        """Whether the graphs become context binaries of an NPU."""
        return self.target is not Target.CPU

    @property
    def table_bits(self) -> int:
        """Bits of one number of the embedding table."""
        return self.embedding_bits or DEFAULT_EMBEDDING_BITS[self.quant]


def check_arguments(arguments: CompileArguments) -> None:
    """Raise CompileError naming the option and its limit."""
    if arguments.block not in BLOCKS:
        raise CompileError(f"--block must be one of {BLOCKS}, it is {arguments.block}")
    if arguments.embedding_bits and arguments.embedding_bits not in EMBEDDING_BITS:
        raise CompileError(f"--embedding must be one of {EMBEDDING_BITS}, it is {arguments.embedding_bits}")
    if arguments.context and arguments.same_past:
        raise CompileError("--context and --same-past exclude each other")
    if bool(arguments.rows) != bool(arguments.context or arguments.same_past):
        raise CompileError("fixed variants need --rows together with --context or --same-past")
    _check_target(arguments)
    _check_integer_graphs(arguments)
    _check_list("--rows", arguments.rows, MAX_ROWS)
    _check_list("--context", arguments.context, MAX_CONTEXT)
    _check_list("--same-past", arguments.same_past, MAX_CONTEXT)
    if not 0 <= arguments.max_context <= MAX_CONTEXT:
        raise CompileError(f"--max-context must be from 0 to {MAX_CONTEXT}, it is {arguments.max_context}")
    if not 2 <= arguments.parity_tokens <= 4096:
        raise CompileError(f"--parity-tokens must be from 2 to 4096, it is {arguments.parity_tokens}")
    if not arguments.output.name:
        raise CompileError(f"{arguments.output} cannot be the output folder")


def _check_target(arguments: CompileArguments) -> None:
    known = TARGET_QUANTS.get(arguments.target, NPU_QUANTS)
    for quant in (arguments.quant, arguments.head or arguments.quant):
        if quant not in known:
            raise CompileError(
                f"--target {arguments.target} takes --quant {', '.join(item.value for item in known)}, not {quant}"
            )
    if not arguments.is_npu:
        if not arguments.share_weights or arguments.part_mb != DEFAULT_PART_MB:
            raise CompileError(
                f"--one-graph-per-binary and --part-mb are for NPUs, not for --target {arguments.target}"
            )
        return
    if not arguments.rows:
        raise CompileError(f"--target {arguments.target} needs fixed variants: --rows with --context or --same-past")
    if arguments.asymmetric or arguments.block != NPU_BLOCK:
        raise CompileError(f"--target {arguments.target} takes symmetric blocks of {NPU_BLOCK} only")
    if arguments.embedding_bits not in (0, 16):
        raise CompileError(f"--target {arguments.target} takes --embedding 16 only, not {arguments.embedding_bits}")
    if not 1 <= arguments.part_mb <= MAX_PART_MB:
        raise CompileError(f"--part-mb must be from 1 to {MAX_PART_MB}, it is {arguments.part_mb}")


def _check_integer_graphs(arguments: CompileArguments) -> None:
    quant = arguments.quant
    if quant not in INTEGER_GRAPHS:
        if arguments.calibration is not None:
            raise CompileError(f"--calibration is for {' and '.join(INTEGER_GRAPHS)}, not for --quant {quant}")
        if arguments.head in INTEGER_GRAPHS:
            raise CompileError(f"--head {arguments.head} needs --quant {' or '.join(INTEGER_GRAPHS)}")
        return
    if arguments.calibration is not None and not arguments.calibration.is_file():
        raise CompileError(f"--calibration {arguments.calibration} cannot be read: there is no such file")
    if not arguments.rows:
        raise CompileError(f"--quant {quant} needs fixed variants: --rows with --context or --same-past")
    if arguments.head_quant not in INTEGER_GRAPHS:
        raise CompileError(f"--quant {quant} takes --head {' or '.join(INTEGER_GRAPHS)}, not {arguments.head}")
    if arguments.asymmetric or arguments.embedding_bits not in (0, 16):
        raise CompileError(f"--quant {quant} takes symmetric weights and --embedding 16 only")


def _check_list(option: str, values: tuple[int, ...], limit: int) -> None:
    for value in values:
        if not 1 <= value <= limit:
            raise CompileError(f"{option} takes numbers from 1 to {limit}, not {value}")


def fixed_shapes(arguments: CompileArguments) -> tuple[PassShape, ...]:
    """The fixed variants asked for, smallest first; empty means free shapes. CompileError when none is possible."""
    shapes = {PassShape(rows, past) for rows in arguments.rows for past in arguments.same_past}
    shapes |= {
        PassShape(rows, context - rows) for rows in arguments.rows for context in arguments.context if context > rows
    }
    if arguments.rows and not shapes:
        raise CompileError("no variant is left: every --context must be larger than some --rows")
    useless = [rows for rows in arguments.rows if all(shape.rows != rows for shape in shapes)]
    if useless:
        raise CompileError(f"--rows {useless[0]} fits no --context: one must be larger than the rows")
    if len(shapes) > MAX_VARIANTS:
        raise CompileError(f"{len(shapes)} variants were asked for, {MAX_VARIANTS} is the most")
    return tuple(sorted(shapes))
