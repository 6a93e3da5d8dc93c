"""Which arguments make sense together. Pure: no file is written, and none but --calibration is looked for."""

from engine.bundle.variant import PassShape
from engine.compile.arguments import (
    BLOCKS,
    DEFAULT_PART_MB,
    EMBEDDING_BITS,
    CompileArguments,
    Layout,
    QualityLevel,
)
from engine.compile.fused.plan import pass_shapes
from engine.compile.layout import check_layout, layout_of, tries_int8
from engine.compile.quantization.method import Activations
from engine.compile.quantization.table import CHOOSABLE, head_method, quants_with
from engine.errors import CompileError

NPU_BLOCK = 32
MAX_PART_MB = 3500  # one context binary must fit the NPU's 32-bit address space
MAX_ROWS = 4096
MAX_CONTEXT = 1 << 20
MAX_VARIANTS = 256
# Whether the target is an NPU -> the activations its graphs may have.
TAKEN = {
    False: (Activations.FLOAT32, Activations.INTEGER),
    True: (Activations.FLOAT16, Activations.INTEGER),
}


def check_arguments(arguments: CompileArguments) -> None:
    """Raise CompileError naming the option and its limit."""
    _check_storage(arguments)
    if arguments.context and arguments.same_past:
        raise CompileError("--context and --same-past exclude each other")
    if bool(arguments.rows) != bool(arguments.context or arguments.same_past):
        raise CompileError("fixed variants need --rows together with --context or --same-past")
    _check_whole_context(arguments)
    _check_target(arguments)
    _check_integer_graphs(arguments)
    check_layout(arguments)
    _check_list("--context", arguments.context, MAX_CONTEXT)
    _check_list("--same-past", arguments.same_past, MAX_CONTEXT)
    _check_sizes(arguments)


def check_numbers(arguments: CompileArguments) -> None:
    """What holds for every kind of model. Raise CompileError naming the option and its limit."""
    _check_storage(arguments)
    _check_binaries(arguments)
    _check_sizes(arguments)


def _check_storage(arguments: CompileArguments) -> None:
    if arguments.block not in BLOCKS:
        raise CompileError(f"--block must be one of {BLOCKS}, it is {arguments.block}")
    if arguments.embedding_bits and arguments.embedding_bits not in EMBEDDING_BITS:
        raise CompileError(f"--embedding must be one of {EMBEDDING_BITS}, it is {arguments.embedding_bits}")


def _check_sizes(arguments: CompileArguments) -> None:
    _check_list("--rows", arguments.rows, MAX_ROWS)
    if not 0 <= arguments.max_context <= MAX_CONTEXT:
        raise CompileError(f"--max-context must be from 0 to {MAX_CONTEXT}, it is {arguments.max_context}")
    if arguments.parity_tokens and not 2 <= arguments.parity_tokens <= 4096:
        raise CompileError(f"--parity-tokens must be from 2 to 4096, it is {arguments.parity_tokens}")
    if not arguments.output.name:
        raise CompileError(f"{arguments.output} cannot be the output folder")


def _check_target(arguments: CompileArguments) -> None:
    known = quants_with(*TAKEN[arguments.is_npu])
    for option, quant in (("--quant", arguments.quant), ("--head", arguments.head or arguments.quant)):
        if quant not in known:
            taken = ", ".join(item.value for item in known)
            raise CompileError(f"--target {arguments.target} takes {option} {taken}, not {quant}")
    if arguments.is_npu and not arguments.rows:
        raise CompileError(f"--target {arguments.target} needs fixed variants: --rows with --context or --same-past")
    _check_binaries(arguments)


def _check_binaries(arguments: CompileArguments) -> None:
    """Options of NPU targets for others, and the other way round."""
    if not arguments.is_npu:
        if not arguments.share_weights or arguments.part_mb != DEFAULT_PART_MB:
            raise CompileError(
                f"--one-graph-per-binary and --part-mb are for NPUs, not for --target {arguments.target}"
            )
        return
    if arguments.asymmetric or arguments.block != NPU_BLOCK:
        raise CompileError(f"--target {arguments.target} takes symmetric blocks of {NPU_BLOCK} only")
    if arguments.embedding_bits not in (0, 16):
        raise CompileError(f"--target {arguments.target} takes --embedding 16 only, not {arguments.embedding_bits}")
    if not 1 <= arguments.part_mb <= MAX_PART_MB:
        raise CompileError(f"--part-mb must be from 1 to {MAX_PART_MB}, it is {arguments.part_mb}")


def _check_integer_graphs(arguments: CompileArguments) -> None:
    quant, integer = arguments.quant, quants_with(Activations.INTEGER)
    _check_calibration(arguments)
    if quant not in integer:
        if arguments.head in integer:
            raise CompileError(f"--head {arguments.head} needs --quant {' or '.join(integer)}")
        return
    if not arguments.rows:
        raise CompileError(f"--quant {quant} needs fixed variants: --rows with --context or --same-past")
    if head_method(arguments).quant not in integer:
        raise CompileError(f"--quant {quant} takes --head {' or '.join(integer)}, not {arguments.head}")
    if arguments.asymmetric or arguments.embedding_bits not in (0, 16):
        raise CompileError(f"--quant {quant} takes symmetric weights and --embedding 16 only")


def _check_calibration(arguments: CompileArguments) -> None:
    if arguments.calibration is None:
        return
    chooses_codes = arguments.quant in CHOOSABLE and arguments.quality is not QualityLevel.FAST
    if not (measured_on_text(arguments) or chooses_codes):
        raise CompileError(
            f"--calibration is for --quant {' and '.join(quants_with(Activations.INTEGER))}, for --quality and for "
            "segments with int8 caches: nothing of this bundle is measured on text"
        )
    if not arguments.calibration.is_file():
        raise CompileError(f"--calibration {arguments.calibration} cannot be read: there is no such file")


def measured_on_text(arguments: CompileArguments) -> str:
    """What calibration text is read for whatever the quality is; '' for nothing."""
    if arguments.quant in quants_with(Activations.INTEGER):
        return "ranges of activations"
    return "scales of int8 caches" if layout_of(arguments) is Layout.SEGMENTS and tries_int8(arguments) else ""


def _check_whole_context(arguments: CompileArguments) -> None:
    if not arguments.whole_context:
        return
    if arguments.rows or arguments.context or arguments.same_past:
        raise CompileError("--whole-context excludes --rows, --context and --same-past")
    if arguments.is_npu or arguments.quant in quants_with(Activations.INTEGER):
        raise CompileError("--whole-context is for --target cpu with float activations")
    _check_list("--whole-context", arguments.whole_context, MAX_ROWS)


def _check_list(option: str, values: tuple[int, ...], limit: int) -> None:
    for value in values:
        if not 1 <= value <= limit:
            raise CompileError(f"{option} takes numbers from 1 to {limit}, not {value}")


def longest_sequence(shapes: tuple[PassShape, ...]) -> int:
    """Most tokens that fixed shapes can hold."""
    return max(shape.past + 1 if shape.past else shape.rows for shape in shapes)


def fixed_shapes(arguments: CompileArguments) -> tuple[PassShape, ...]:
    """The fixed variants asked for, smallest first; empty means free shapes. CompileError when none is possible."""
    if layout_of(arguments) is Layout.FUSED:
        return pass_shapes(arguments)
    if arguments.whole_context:
        return tuple(PassShape(length, 0) for length in sorted(set(arguments.whole_context)))
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
