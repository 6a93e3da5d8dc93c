"""Cutting a network into context binaries: the layers by size, the LM head apart when asked."""

from itertools import pairwise

from engine.bundle.manifest import GraphKind
from engine.compile.arguments import DEFAULT_PART_MB, CompileArguments, Quant, Split
from engine.compile.parts import EMBEDDED, HIDDEN, PartPlan
from engine.compile.quantization.table import METHODS, head_method
from engine.errors import CompileError
from engine.models.network import Network

MEGABYTE = 1_000_000
COMPILER_FACTOR = 10  # the compiler of two variants takes so many times the memory of a part's weights
MEMORY_SHARE = 0.8  # of the machine, for one compiler; the rest of the system has the other part


def plan_binaries(arguments: CompileArguments, network: Network, memory: int = 0) -> tuple[PartPlan, ...]:
    """Parts in the order they run, none with more weights than `part_mb`. CompileError when one layer has more.

    memory: bytes of the machine, 0 = unknown. The default of `part_mb` is less where its compiler would not fit.
    """
    runs = _layer_runs(arguments, network, memory)
    alone = arguments.split is not Split.NONE
    lut = arguments.split is Split.LUT_LMHEAD
    count = len(runs) + alone + lut
    parts: list[PartPlan] = []
    if lut:
        parts.append(PartPlan(1, count, GraphKind.LUT, True, range(0), False, "input_ids", EMBEDDED))
    for index, layers in enumerate(runs):
        first, last = index == 0, index == len(runs) - 1
        parts.append(
            PartPlan(
                number=len(parts) + 1,
                count=count,
                kind=GraphKind.DEFAULT if len(runs) == 1 and not alone else GraphKind.DECODER,
                has_table=first and not lut,
                layers=layers,
                has_head=last and not alone,
                source=parts[-1].result if parts else "input_ids",
                result="logits" if last and not alone else HIDDEN if last else f"{HIDDEN}_{layers[-1]}",
            )
        )
    if alone:
        parts.append(PartPlan(count, count, GraphKind.LMHEAD, False, range(0), True, parts[-1].result, "logits"))
    return tuple(parts)


def _layer_runs(arguments: CompileArguments, network: Network, memory: int) -> list[range]:
    """Layers in runs of nearly equal length, as few as fit."""
    spec = network.spec
    layer = layer_bytes(arguments.quant, network)
    embedding = spec.vocab * spec.hidden * 2
    first = 0 if arguments.split is Split.LUT_LMHEAD else embedding
    head = spec.vocab * spec.hidden * head_method(arguments).bytes_per_weight
    last = head if arguments.split is Split.NONE else 0.0
    limit = float(arguments.part_mb * MEGABYTE)
    if memory and arguments.part_mb == DEFAULT_PART_MB:
        limit = min(limit, max(compilable_bytes(memory), layer + max(first, last)))
    for count in range(1, spec.layers + 1):
        runs = _even(spec.layers, count)
        sizes = [len(run) * layer for run in runs]
        sizes[0] += first
        sizes[-1] += last
        if max(sizes) <= limit:
            return runs
    raise CompileError(
        f"--part-mb {arguments.part_mb} is too small: one layer has {layer / MEGABYTE:.0f} MB, "
        f"the embedding {embedding / MEGABYTE:.0f} MB, the LM head {head / MEGABYTE:.0f} MB"
    )


def compilable_bytes(memory: int) -> float:
    """Bytes of weights that a machine with so much memory can have under compilation at once."""
    return MEMORY_SHARE * memory / COMPILER_FACTOR


def layer_bytes(quant: Quant, network: Network) -> float:
    """Bytes of one layer's matrices as stored."""
    spec = network.spec
    projections = spec.hidden * (2 * network.query_width + 2 * network.key_width)
    return (projections + 3 * spec.hidden * spec.ffn) * METHODS[quant].bytes_per_weight


def _even(layers: int, count: int) -> list[range]:
    bounds = [layers * index // count for index in range(count + 1)]
    return [range(start, stop) for start, stop in pairwise(bounds)]
