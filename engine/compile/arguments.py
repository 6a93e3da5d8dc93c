"""What the user asks of the compiler, as one frozen record, checked before any work."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.bundle.variant import PassShape
from engine.errors import CompileError

BLOCKS = (32, 128)
MAX_ROWS = 4096
MAX_CONTEXT = 1 << 20
MAX_VARIANTS = 256


class Target(StrEnum):
    """What the graphs are for."""

    CPU = "cpu"


class Quant(StrEnum):
    """How the weights of a linear layer are stored. Measured figures: `engine/compile/quantize.py`."""

    FP32 = "fp32"
    INT8 = "int8"
    INT4 = "int4"


class Split(StrEnum):
    """Where the network is cut into graphs."""

    NONE = "none"
    LMHEAD = "lmhead"
    LUT_LMHEAD = "lut+lmhead"


DEFAULT_EMBEDDING_BITS = {Quant.FP32: 32, Quant.INT8: 16, Quant.INT4: 16}
EMBEDDING_BITS = (32, 16, 8, 4)


@dataclass(frozen=True, slots=True)
class CompileArguments:
    """One compilation.

    head: how the LM head is stored, None = as `quant`. embedding_bits: 0 = 32 for fp32, else 16.
    rows x context, or rows with same_past (contexts become past + rows), make fixed variants; none of them makes
    free-shape graphs. max_context in tokens, 0 = what the checkpoint was made for. parity_tokens: length of the
    text the finished bundle is checked with.
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
    _check_list("--rows", arguments.rows, MAX_ROWS)
    _check_list("--context", arguments.context, MAX_CONTEXT)
    _check_list("--same-past", arguments.same_past, MAX_CONTEXT)
    if not 0 <= arguments.max_context <= MAX_CONTEXT:
        raise CompileError(f"--max-context must be from 0 to {MAX_CONTEXT}, it is {arguments.max_context}")
    if not 2 <= arguments.parity_tokens <= 4096:
        raise CompileError(f"--parity-tokens must be from 2 to 4096, it is {arguments.parity_tokens}")
    if not arguments.output.name:
        raise CompileError(f"{arguments.output} cannot be the output folder")


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
    if len(shapes) > MAX_VARIANTS:
        raise CompileError(f"{len(shapes)} variants were asked for, {MAX_VARIANTS} is the most")
    return tuple(sorted(shapes))
