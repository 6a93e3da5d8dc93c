"""Which fused graphs the options ask for. Pure."""

from dataclasses import replace

from engine.bundle.fused import fused_shapes, shape_for
from engine.bundle.fused_spec import SPARE_COLUMNS, FusedSpec
from engine.bundle.manifest import GraphKind
from engine.bundle.variant import PassShape
from engine.compile.arguments import CompileArguments, KvUpdate, Split
from engine.compile.graphs import GraphPlan
from engine.compile.parts import PartPlan, plan_parts
from engine.errors import CompileError
from engine.models.network import Network

LEAST_COLUMNS = 16
MOST_SLOTS = 64


def fused_spec(arguments: CompileArguments) -> FusedSpec:
    """What the graphs have in common. CompileError naming the option at fault.

    The past is `same_past`, or what the widest graph leaves of `context`: all graphs have the same, so that a cache
    fits every one of them.
    """
    rows, slots = tuple(sorted(arguments.rows)), arguments.decode_slots
    if not rows:
        raise CompileError("--layout fused needs --rows together with --context or --same-past")
    if not 1 <= slots <= MOST_SLOTS:
        raise CompileError(f"--decode-slots must be from 1 to {MOST_SLOTS}, it is {slots}")
    if rows[0] <= slots:
        raise CompileError(f"--rows {rows[0]} leave none for a prompt beside --decode-slots {slots}")
    given = (*arguments.context, *arguments.same_past)
    if len(given) != 1:
        raise CompileError("--layout fused has one past for all graphs: give one number of --context or --same-past")
    past = given[0] - (rows[-1] if arguments.context else 0)
    if past - SPARE_COLUMNS < LEAST_COLUMNS:
        given_by = f"--same-past is {past}"
        if arguments.context:
            given_by = f"{max(past, 0)} are left of --context {given[0]} beside --rows {rows[-1]}"
        raise CompileError(f"--layout fused needs {LEAST_COLUMNS + SPARE_COLUMNS} past columns, {given_by}")
    prefill = tuple(count - slots for count in rows)
    return FusedSpec(rows, prefill, slots, past, kv_update(arguments) is KvUpdate.GRAPH)


def kv_update(arguments: CompileArguments) -> KvUpdate:
    """On the CPU by the graph unless said otherwise; an NPU's back end may lack the operator."""
    return arguments.kv_update or (KvUpdate.HOST if arguments.is_npu else KvUpdate.GRAPH)


def check_fused_options(arguments: CompileArguments, is_fused: bool) -> None:
    """CompileError for options that fused graphs have no use for, or that only they have."""
    if not is_fused:
        if arguments.decode_slots != 1 or arguments.kv_update is not None:
            raise CompileError("--decode-slots and --kv-update are for --layout fused")
        return
    if arguments.whole_context:
        raise CompileError("--whole-context is for --layout pool: fused graphs have caches")
    fused_spec(arguments)
    if arguments.split is not None and arguments.split is not Split.NONE:
        raise CompileError(f"--layout fused is one graph for a pass: it takes no --split {arguments.split}")


def pass_shapes(arguments: CompileArguments) -> tuple[PassShape, ...]:
    """The shapes of all graphs, fewest rows first."""
    spec = fused_spec(arguments)
    return tuple(PassShape(shape.rows, spec.past) for shape in fused_shapes(spec))


def whole_part(network: Network) -> PartPlan:
    """The network as one graph. CompileError for a model that denoises blocks: a decode has one row."""
    if network.details.diffusion is not None:
        raise CompileError(f"--layout fused decodes token by token: {network.spec.family} denoises blocks of them")
    (part,) = plan_parts(Split.NONE, network.spec.layers)
    return replace(part, kind=GraphKind.FUSED)


def plan_fused(part: PartPlan, shapes: tuple[PassShape, ...], decode_slots: int) -> list[GraphPlan]:
    """Every graph by its name."""
    return [GraphPlan(shape_for(shape.rows, decode_slots).name, part, shape) for shape in shapes]


def compiled_context(arguments: CompileArguments) -> int:
    """Most tokens of one sequence: a full cache, and the newest token, which needs no column."""
    return fused_spec(arguments).columns + 1
