"""Which options make sense together, and the layout, shapes and graphs that they stand for. Pure."""

from dataclasses import replace

from engine.bundle.fused import fused_shapes
from engine.bundle.manifest import GraphKind
from engine.bundle.segments import LEAST_PRODUCTS, grouped_names
from engine.bundle.specs import SPARE_SLOTS, FusedSpec, ModelTask
from engine.bundle.variant import StepShape
from engine.bundle.weight_files import FLOAT_BYTES
from engine.compile.arguments import (
    BLOCKS,
    DEFAULT_PART_MB,
    EMBEDDING_BITS,
    CompileArguments,
    KvType,
    KvUpdate,
    Layout,
    QualityLevel,
    Split,
    Target,
)
from engine.compile.graphs.pool import DEEP_ROWS, PartPlan, one_part
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import (
    CHOOSABLE,
    WITH_ROWS,
    head_method,
    is_exact,
    method_of,
    quants_with,
    take_block,
)
from engine.errors import CompileError
from engine.models.network import Network

LEAST_SLOTS = 16
MOST_SLOTS = 64


def fused_spec(arguments: CompileArguments) -> FusedSpec:
    """What the graphs have in common. CompileError naming the option at fault. The past is `same_past`, or what the
    widest graph leaves of `context`: all graphs have the same, so that a cache fits every one of them."""
    rows, slots, context = tuple(sorted(arguments.rows)), arguments.decode_slots, arguments.context
    if not rows:
        raise CompileError("--layout fused needs --rows together with --context or --same-past")
    if not 1 <= slots <= MOST_SLOTS:
        raise CompileError(f"--decode-slots must be from 1 to {MOST_SLOTS}, it is {slots}")
    if rows[0] <= slots:
        raise CompileError(f"--rows {rows[0]} leave none for a prompt beside --decode-slots {slots}")
    given = (*context, *arguments.same_past)
    if len(given) != 1:
        raise CompileError("--layout fused has one past for all graphs: give one number of --context or --same-past")
    past = given[0] - (rows[-1] if context else 0)
    if past - SPARE_SLOTS < LEAST_SLOTS:
        left = f"{max(past, 0)} are left of --context {given[0]} beside --rows {rows[-1]}"
        given_by = left if context else f"--same-past is {past}"
        raise CompileError(f"--layout fused needs {LEAST_SLOTS + SPARE_SLOTS} past KV slots, {given_by}")
    prefill = tuple(count - slots for count in rows)
    return FusedSpec(rows, prefill, slots, past, kv_update(arguments) is KvUpdate.GRAPH)


def kv_update(arguments: CompileArguments) -> KvUpdate:
    """On the CPU by the graph unless said otherwise; an NPU's back end may lack the operator."""
    return arguments.kv_update or (KvUpdate.HOST if arguments.is_npu else KvUpdate.GRAPH)


def _check_fused_options(arguments: CompileArguments) -> None:
    if layout_of(arguments) is not Layout.FUSED:
        if arguments.decode_slots != 1 or arguments.kv_update is not None:
            raise CompileError("--decode-slots and --kv-update are for --layout fused")
        return
    if arguments.whole_context:
        raise CompileError("--whole-context is for --layout pool: fused graphs have caches")
    fused_spec(arguments)
    if arguments.split is not None and arguments.split is not Split.NONE:
        raise CompileError(f"--layout fused is one graph for a step: it takes no --split {arguments.split}")


def whole_part(network: Network) -> PartPlan:
    """The network as one graph. CompileError for a model that denoises blocks: a decode has one row."""
    if network.details.diffusion is not None:
        raise CompileError(f"--layout fused decodes token by token: {network.spec.family} denoises blocks of them")
    return one_part(GraphKind.FUSED, network.spec.layers)


HEAD_STEP = 8  # the attention operator takes heads of its multiples only
# From which on caches are halves, numbers of a token's keys in a layer: measured on two cores, at 192 and 1,088 columns
# attention takes 0.5 to 1.0 of the time (with 128 numbers, 16 decodes take 1.2 times as long).
LEAST_WIDTH = 512
LEAST_HALVED = 1 << 27  # bytes of float32 caches of a full sequence: below, halves save nothing that anyone misses


def layout_of(arguments: CompileArguments) -> Layout:
    """The layout asked for, else the best that target, shapes and activations allow."""
    if arguments.layout is not None:
        return arguments.layout
    is_fixed = arguments.is_npu or arguments.rows or arguments.split or arguments.whole_context
    is_float = method_of(arguments).activations is Activations.FLOAT32
    return Layout.SEGMENTS if is_float and not is_fixed else Layout.POOL


def kv_type(arguments: CompileArguments) -> KvType:
    """What a bundle of segments stores keys and values as; int8 where asked for, or chosen by what it loses."""
    return arguments.kv or KvType.FLOAT32


def tries_int8(arguments: CompileArguments) -> bool:
    """Whether int8 caches are measured: where they are asked for, or may be chosen. Floats stay floats, and vectors
    show every rounding."""
    if arguments.kv is not None:
        return arguments.kv is KvType.INT8
    return not is_exact(arguments) and arguments.task is not ModelTask.EMBED


def check_layout(arguments: CompileArguments) -> None:
    """CompileError for options that the layout has no use for."""
    _check_fused_options(arguments)
    if layout_of(arguments) is not Layout.SEGMENTS:
        if arguments.kv is not None:
            raise CompileError(f"--kv {arguments.kv} is for --layout segments")
        if arguments.lora:
            raise CompileError("--lora is for --layout segments: other graphs have their weights fixed")
        return
    if arguments.is_npu:
        raise CompileError(f"--layout segments is for --target cpu, not for {arguments.target}")
    if method_of(arguments).activations is not Activations.FLOAT32:
        raise CompileError(f"--layout segments needs float activations, --quant {arguments.quant} has integers")
    if arguments.rows:
        raise CompileError("--layout segments has free shapes: it takes no --rows, --context or --same-past")
    if arguments.whole_context:
        raise CompileError("--whole-context is for --layout pool: segments have caches")
    if arguments.split is not None:
        raise CompileError("--split is for --layout pool: segments are cut at every layer")


def resolve_graphs(arguments: CompileArguments, network: Network) -> CompileArguments:
    """The arguments with layout, caches and split of this model. CompileError names the option that it cannot have."""
    arguments = resolve_caches(resolve_layout(arguments, network.odd_head_dim), network)
    if arguments.split is None and arguments.is_npu and network.reads_images:
        arguments = replace(arguments, split=Split.HOST_LMHEAD)
    check_recurrent(arguments, network)
    check_images(arguments, network)
    check_layers(arguments, network)
    return arguments


def resolve_layout(arguments: CompileArguments, head_dim: int) -> CompileArguments:
    """The arguments with the layout that this model gets. CompileError for segments that it cannot have."""
    layout = layout_of(arguments)
    if layout is Layout.SEGMENTS and head_dim % HEAD_STEP:
        if arguments.layout is Layout.SEGMENTS or arguments.kv or arguments.lora:
            raise CompileError(f"--layout segments needs a head size that {HEAD_STEP} divides, it is {head_dim}")
        layout = Layout.POOL
    return replace(arguments, layout=layout)


def resolve_caches(arguments: CompileArguments, network: Network) -> CompileArguments:
    """The arguments with float32 caches where layers have unlike ones. CompileError for what the model cannot have."""
    if layout_of(arguments) is not Layout.SEGMENTS:
        return arguments
    if arguments.kv is KvType.FLOAT16 and not has_half_caches(network):
        reason = "their graph is for layers whose query heads share key heads, without windows, sinks and caps"
        raise CompileError(f"--kv float16 is refused for {network.spec.family}: {reason}; take --kv float32")
    if not network.spec.has_unlike_caches:
        return arguments
    if arguments.kv is KvType.INT8:
        raise CompileError(f"--kv int8 is refused for {network.own_forms} ({network.spec.family}): take --kv float32")
    return replace(arguments, kv=KvType.FLOAT32)


def has_half_caches(network: Network) -> bool:
    """Whether few rows of every layer have a graph over float16 caches: only that one is fast."""
    spec = network.spec
    grouped = grouped_names(spec, KvType.FLOAT16.value).values()
    return not (network.details.attention_softcap or spec.has_unlike_caches) and set(grouped) == set(spec.layer_forms)


def float_kv(arguments: CompileArguments, network: Network, is_short: bool) -> KvType:
    """What caches are where they are not int8: float16 where memory is short, or where a full sequence's would be large
    and one row is computed faster over halves than by the operator over float32."""
    spec = network.spec
    if arguments.kv in (KvType.FLOAT32, KvType.FLOAT16):
        return arguments.kv
    if is_exact(arguments) or arguments.task is ModelTask.EMBED or not has_half_caches(network):
        return KvType.FLOAT32
    is_large = network.compiled_context * spec.cache_numbers * FLOAT_BYTES >= LEAST_HALVED
    is_faster = spec.heads >= LEAST_PRODUCTS * spec.kv_heads and spec.kv_heads * spec.head_dim >= LEAST_WIDTH
    return KvType.FLOAT16 if is_short or (is_large and is_faster) else KvType.FLOAT32


def check_recurrent(arguments: CompileArguments, network: Network) -> None:
    """CompileError names the option that recurrent layers, if there are any, cannot do with. A state is one sequence's:
    pools, where rows see any columns, have no place for it, and NPU graphs are of pools."""
    if network.spec.recurrent is None:
        return
    family = network.spec.family
    if arguments.is_npu:
        raise CompileError(f"--target {arguments.target}: recurrent layers ({family}) run on the CPU only")
    if network.spec.head_dim % HEAD_STEP:
        raise CompileError(f"recurrent layers ({family}) need a head size that {HEAD_STEP} divides")
    if arguments.lora:
        raise CompileError(f"--lora is refused: adapters of recurrent layers ({family}) are not implemented")
    if layout_of(arguments) is not Layout.SEGMENTS:
        raise CompileError(
            f"recurrent layers ({family}) need --layout segments, with free shapes, no --split and a --quant of float "
            "activations: their state belongs to one sequence, and a pool has none"
        )


def check_images(arguments: CompileArguments, network: Network) -> None:
    """CompileError unless the graphs are segments, or an NPU's that take embeddings."""
    if not network.reads_images or layout_of(arguments) is Layout.SEGMENTS:
        return
    reads = f"a model that reads images ({network.spec.family})"
    if not arguments.is_npu or layout_of(arguments) is not Layout.POOL:
        raise CompileError(f"{reads} needs --target cpu with --layout segments")
    if network.deepstack and method_of(arguments).activations is not Activations.FLOAT16:
        raise CompileError(f"{reads} takes --quant w4 or fp16 on an NPU")
    if arguments.split is not Split.HOST_LMHEAD:
        raise CompileError(f"{reads} takes --split {Split.HOST_LMHEAD} on an NPU")
    if network.deepstack and max(arguments.rows) > DEEP_ROWS:
        raise CompileError(f"{reads} takes at most {DEEP_ROWS} --rows, not {max(arguments.rows)}")


def check_layers(arguments: CompileArguments, network: Network) -> None:
    """CompileError names what the layers have that the graphs asked for lack, if there is such."""
    if arguments.lora and network.details.experts is not None:
        raise CompileError(f"--lora is refused: adapters of layers with experts ({network.spec.family}) are not known")
    if arguments.lora and network.own_forms:
        raise CompileError(f"--lora is refused: adapters of {network.own_forms} ({network.spec.family}) are not known")
    if layout_of(arguments) is Layout.SEGMENTS:
        return
    is_pool = layout_of(arguments) is Layout.POOL
    is_float = is_pool and method_of(arguments).activations is Activations.FLOAT32
    lacking, place = network.unlike_layers or ("" if is_float else network.own_operators), "--layout segments"
    if not lacking and (not is_pool or arguments.whole_context):
        lacking, place = network.own_sights or ("" if is_pool else network.other_stream), "--layout pool"
    if lacking:
        target = "--target cpu with " if place == "--layout segments" else ""
        shortest = min((window for window in network.spec.layer_windows if window), default=0)
        shorter = f", or a context of at most {shortest}" if shortest and not network.own_forms else ""
        raise CompileError(f"{lacking} ({network.spec.family}) needs {target}{place}{shorter}")


NPU_BLOCK = 32
MAX_PART_MB = 3500  # one context binary must fit the NPU's 32-bit address space
MAX_ROWS = 4096
MAX_CONTEXT = 1 << 20
MAX_VARIANTS = 256
# Whether the target is an NPU -> the activations its graphs may have.
TAKEN = {False: (Activations.FLOAT32, Activations.INTEGER), True: (Activations.FLOAT16, Activations.INTEGER)}


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
    if arguments.split is Split.HOST_LMHEAD and not arguments.is_npu:
        raise CompileError(f"--split {arguments.split} is for an NPU")
    check_layout(arguments)
    _check_sizes(arguments)


def check_numbers(arguments: CompileArguments) -> None:
    """What holds for every kind of model. Raise CompileError naming the option and its limit."""
    _check_storage(arguments)
    _check_binaries(arguments)
    _check_sizes(arguments)


def _check_storage(arguments: CompileArguments) -> None:
    if arguments.block not in BLOCKS:
        raise CompileError(f"--block must be one of {BLOCKS}, it is {arguments.block}")
    is_chosen = arguments.asymmetric or arguments.block != BLOCKS[0]
    if is_chosen and not arguments.is_npu and not take_block(arguments):
        raise CompileError(f"--block and --asymmetric are for --quant int4, not {arguments.quant}")
    if arguments.amx is not None and (arguments.is_npu or arguments.quant not in WITH_ROWS):
        taken = f"--target {Target.CPU} with --quant {', '.join(WITH_ROWS)}"
        raise CompileError(f"--amx and --no-amx are for {taken}, not for {arguments.target} with {arguments.quant}")
    if arguments.embedding_bits and arguments.embedding_bits not in EMBEDDING_BITS:
        raise CompileError(f"--embedding must be one of {EMBEDDING_BITS}, it is {arguments.embedding_bits}")


def _check_sizes(arguments: CompileArguments) -> None:
    _check_list("--context", arguments.context, MAX_CONTEXT)
    _check_list("--same-past", arguments.same_past, MAX_CONTEXT)
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
            raise CompileError(f"--target {arguments.target} takes {option} {', '.join(known)}, not {quant}")
    if arguments.is_npu and not arguments.rows:
        raise CompileError(f"--target {arguments.target} needs fixed variants: --rows with --context or --same-past")
    _check_binaries(arguments)


def _check_binaries(arguments: CompileArguments) -> None:
    """Options of NPU targets for others, and the other way round."""
    target = f"--target {arguments.target}"
    if not arguments.is_npu:
        if not arguments.share_weights or arguments.part_mb != DEFAULT_PART_MB:
            raise CompileError(f"--one-graph-per-binary and --part-mb are for NPUs, not for {target}")
        return
    if arguments.asymmetric or arguments.block != NPU_BLOCK:
        raise CompileError(f"{target} takes symmetric blocks of {NPU_BLOCK} only")
    if arguments.embedding_bits not in (0, 16):
        raise CompileError(f"{target} takes --embedding 16 only, not {arguments.embedding_bits}")
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
    if wrong := [value for value in values if not 1 <= value <= limit]:
        raise CompileError(f"{option} takes numbers from 1 to {limit}, not {wrong[0]}")


def longest_sequence(shapes: tuple[StepShape, ...]) -> int:
    """Most tokens that fixed shapes can hold."""
    return max(shape.past + 1 if shape.past else shape.rows for shape in shapes)


def fixed_shapes(arguments: CompileArguments) -> tuple[StepShape, ...]:
    """The fixed variants asked for, smallest first; empty means free shapes. CompileError when none is possible."""
    if layout_of(arguments) is Layout.FUSED:
        spec = fused_spec(arguments)
        return tuple(StepShape(shape.rows, spec.past) for shape in fused_shapes(spec))
    if arguments.whole_context:
        return tuple(StepShape(length, 0) for length in sorted(set(arguments.whole_context)))
    every = arguments.rows
    shapes = {StepShape(rows, past) for rows in every for past in arguments.same_past}
    shapes |= {StepShape(rows, context - rows) for rows in every for context in arguments.context if context > rows}
    if every and not shapes:
        raise CompileError("no variant is left: every --context must be larger than some --rows")
    if useless := [rows for rows in every if all(shape.rows != rows for shape in shapes)]:
        raise CompileError(f"--rows {useless[0]} fits no --context: one must be larger than the rows")
    if len(shapes) > MAX_VARIANTS:
        raise CompileError(f"{len(shapes)} variants were asked for, {MAX_VARIANTS} is the most")
    return tuple(sorted(shapes))


def requested_context(arguments: CompileArguments, shapes: tuple[StepShape, ...]) -> int:
    """Most tokens of one sequence that the options allow, 0 = no bound of theirs. A fixed bundle holds P columns and
    the last token needs none, hence the widest past plus one; one without a past has N rows for as many tokens."""
    bounds = [arguments.max_context] if arguments.max_context else []
    if layout_of(arguments) is Layout.FUSED:
        bounds.append(fused_spec(arguments).slots + 1)  # a full cache, and the newest token, which needs no KV slot
    elif shapes:
        bounds.append(longest_sequence(shapes))
    return min(bounds, default=0)
