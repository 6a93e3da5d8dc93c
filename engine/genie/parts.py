"""One graph of a binary read against the contract: shape, caches and hidden state, each tensor checked by name. Legend:
N rows (AR), C key columns (CL), P = C - N past columns, K KV heads, D head size, H hidden size, V vocabulary."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from engine.bundle.manifest import GRAPH_NAME, GraphKind, TensorSpec
from engine.bundle.tensors import LOGITS
from engine.errors import BundleError
from engine.genie.roles import CACHES, CARRIED, STATES, WINDOWS, Meaning, Role, classify, meaning
from engine.runtime.qnn.binary import BinaryGraph, BinaryTensor

REALS = ("uint8", "uint16", "float16", "float32")
TYPES = {
    Role.IDS: ("int32",),
    Role.CACHE_INDEX: ("int32", "uint32"),
    Role.MASK: ("uint8", "uint16", "float16", "float32"),
    **dict.fromkeys((Role.EMBEDS, Role.COS, Role.SIN, Role.KEY, Role.VALUE), REALS),
    **dict.fromkeys((Role.LOGITS, Role.HIDDEN, Role.WEIGHT), REALS),
    **dict.fromkeys((Role.LAYER_EMBEDS, Role.WINDOW_MASK, Role.WINDOW_COS, Role.WINDOW_SIN), REALS),
    **dict.fromkeys((*CARRIED.values(), Role.IMAGE_FEATURES), REALS),
    Role.IMAGE_ROWS: (*REALS, "bool"),
}
INTEGERS = {"uint8": 255, "uint16": 65535}
MAX_SCALE = 1e30
MASK_DEPTH = 20.0  # the shallowest export masks with -50; below this a masked column would still be heard


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of the binary with its meaning and, in the contract's shape, its description."""

    name: str
    meaning: Meaning
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Part:
    """One graph. context is None when it has no mask. inputs, outputs: in the binary's own order."""

    graph: str
    binary: str
    kind: GraphKind
    rows: int
    context: int | None
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        """The absolute layers it computes, ascending."""
        return tuple(sorted({slot.meaning.layer for slot in self.outputs if slot.meaning.layer >= 0}))

    @property
    def is_serial(self) -> bool:
        """Whether it holds one sequence: what is carried in windows and states has no room for another one's."""
        return any(slot.meaning.role in CARRIED.values() for slot in self.inputs)

    @property
    def is_scatter(self) -> bool:
        """Whether it writes its fresh columns into the past ones."""
        return self.input_of(Role.CACHE_INDEX) is not None

    @property
    def reads_whole_context(self) -> bool:
        """Whether it has a row for every column and keeps nothing: each step computes all of a sequence again."""
        return self.context == self.rows and not any(slot.meaning.layer >= 0 for slot in self.inputs)

    @property
    def result(self) -> Slot | None:
        """The one output that is not a cache: a hidden state or logits."""
        return next((slot for slot in self.outputs if slot.meaning.layer < 0), None)

    @property
    def named_part(self) -> tuple[int, int] | None:
        """Which part of how many the graph's name says it is, if the name follows the pattern."""
        match = re.match(GRAPH_NAME, self.graph)
        return (int(match[3]), int(match[4])) if match else None

    @property
    def named_context(self) -> int | None:
        """The context in the graph's name, if the name follows the pattern."""
        match = re.match(GRAPH_NAME, self.graph)
        return int(match[2]) if match else None

    def input_of(self, role: Role) -> Slot | None:
        return _find(self.inputs, Meaning(role))

    def output_of(self, role: Role) -> Slot | None:
        return _find(self.outputs, Meaning(role))


Tensors = Sequence[tuple[BinaryTensor, Meaning]]


def read_part(graph: BinaryGraph, binary: str, vocabulary: int) -> Part:
    """Check one graph. vocabulary 0 = unknown. BundleError names the graph, the tensor and what is wrong with it."""
    try:
        return _read(graph, binary, vocabulary)
    except BundleError as error:
        raise BundleError(f"{binary}, graph {graph.name}: {error}") from None


def _read(graph: BinaryGraph, binary: str, vocabulary: int) -> Part:
    # Some exports name the logits after their last operator; their width tells.
    is_wide = [vocabulary > 0 and tensor.shape[-1:] == (vocabulary,) for tensor in graph.outputs]
    names = [LOGITS if wide else tensor.name for tensor, wide in zip(graph.outputs, is_wide, strict=True)]
    kind = classify([tensor.name for tensor in graph.inputs], names)
    if kind is GraphKind.IMAGE_ENCODER:
        raise BundleError(f"it encodes images (tensor {graph.inputs[0].name}), which is not supported")
    inputs = [(tensor, meaning(tensor.name)) for tensor in graph.inputs]
    results = [(tensor, meaning(name)) for tensor, name in zip(graph.outputs, names, strict=True)]
    for tensor, role in [*inputs, *results]:
        _check_tensor(tensor, role)
    rows, context = _shape(inputs)
    _check_inputs(inputs, kind, rows)
    if len(given := [tensor.name for tensor, role in results if role.layer < 0]) > 1:
        raise BundleError(f"it gives {' and '.join(given)}; one output beside the caches is expected")
    is_scatter = any(role.role is Role.CACHE_INDEX for _, role in inputs)
    past = None if context is None else context if is_scatter else context - rows
    columns = dict.fromkeys(WINDOWS, _window_columns(inputs, rows))
    taken = tuple(_slot(tensor, role, rows, context, columns.get(role.role, past)) for tensor, role in inputs)
    results_slots = tuple(_slot(tensor, role, rows, context, rows) for tensor, role in results)
    part = Part(graph.name, binary, kind, rows, context, taken, results_slots)
    _check_caches(part)
    return part


def _window_columns(inputs: Tensors, rows: int) -> int | None:
    """Columns of a window: what its mask has besides the rows of a run."""
    roles = {role.role for _, role in inputs}
    mask = next((tensor for tensor, role in inputs if role.role is Role.WINDOW_MASK), None)
    if mask is None and roles & set(WINDOWS):
        raise BundleError(f"input {Role.WINDOW_MASK.value} is missing")
    if mask is not None and not mask.shape:
        raise BundleError(f"tensor {mask.name} has no dimensions; [1, 1, rows, columns] is expected")
    if mask is not None and not {Role.WINDOW_COS, Role.WINDOW_SIN} <= roles:
        raise BundleError(f"input {Role.WINDOW_COS.value} or {Role.WINDOW_SIN.value} is missing")
    if roles & set(CARRIED.values()) and Role.CACHE_INDEX in roles:
        raise BundleError("tensor cache_index beside windows or states is not known here")
    return mask.shape[-1] - rows if mask is not None else None


def _find(slots: Sequence[Slot], wanted: Meaning) -> Slot | None:
    return next((slot for slot in slots if slot.meaning == wanted), None)


def _check_tensor(tensor: BinaryTensor, role: Meaning) -> None:
    if tensor.data_format != 0:
        what = "HMX tiles" if role.role in (Role.KEY, Role.VALUE) else "a private layout"
        raise BundleError(
            f"tensor {tensor.name} is laid out in {what} (data format {tensor.data_format}), which is not public; "
            "export it without native KV"
        )
    allowed = TYPES[role.role]
    if tensor.dtype not in allowed:
        raise BundleError(f"tensor {tensor.name} is {tensor.dtype}; {' or '.join(allowed)} is expected")
    encoding = tensor.encoding
    if role.role is Role.WEIGHT:  # only its bytes matter here
        return
    if encoding is not None and encoding.axis is not None:
        raise BundleError(f"tensor {tensor.name} has a scale for each channel; one scale for the tensor is expected")
    if tensor.dtype in INTEGERS:
        if encoding is None or (len(encoding.scales), len(encoding.offsets)) != (1, 1):
            raise BundleError(f"tensor {tensor.name} is {tensor.dtype} and has no scale")
        (scale,), (offset,) = encoding.scales, encoding.offsets
        if not 0 < scale <= MAX_SCALE:
            raise BundleError(f"tensor {tensor.name} has the scale {scale}; up to {MAX_SCALE:g} is possible")
        if not 0 <= -offset <= INTEGERS[tensor.dtype]:
            raise BundleError(f"tensor {tensor.name} cannot hold 0 (offset {offset})")
        depth = -offset * scale
        if role.role in (Role.MASK, Role.WINDOW_MASK) and depth < MASK_DEPTH:
            raise BundleError(f"tensor {tensor.name} reaches down to -{depth:.3g} only, too little to mask with")


def _shape(inputs: Tensors) -> tuple[int, int | None]:
    """(N, C or None): from the mask, else from the ids or the hidden state."""
    found = {role.role: tensor for tensor, role in inputs}
    mask = found.get(Role.MASK)
    if mask is not None:
        if len(mask.shape) < 2 or math.prod(mask.shape[:-2]) != 1:
            raise BundleError(f"tensor {mask.name} has shape {list(mask.shape)}; [1, 1, rows, columns] is expected")
        return mask.shape[-2], mask.shape[-1]
    ids, hidden = found.get(Role.IDS), _hidden(inputs)
    if ids is not None:
        return math.prod(ids.shape), None
    if hidden is None:
        raise BundleError("it has neither token ids nor a hidden state, so its rows cannot be told")
    return hidden.shape[-2], None


def _hidden(inputs: Tensors) -> BinaryTensor | None:
    """The hidden state among the inputs of no known name: of three dimensions, else of the most."""
    found = [tensor for tensor, role in inputs if role.role is Role.HIDDEN and len(tensor.shape) >= 2]
    return max(found, key=lambda tensor: (len(tensor.shape) == 3, len(tensor.shape)), default=None)


def _check_inputs(inputs: Tensors, kind: GraphKind, rows: int) -> None:
    names = {role.role: tensor for tensor, role in inputs}
    starts = Role.IDS in names or Role.EMBEDS in names
    hidden = None if starts else _hidden(inputs)
    if hidden is None and not starts:
        raise BundleError("it takes neither token ids nor a hidden state")
    for tensor, role in inputs:
        is_hidden = tensor is hidden and tensor.shape[-2] == rows
        if role.role is Role.HIDDEN and not is_hidden:
            raise BundleError(f"tensor {tensor.name} is an extra input {list(tensor.shape)} that is not known here")
    _check_rows(names)
    if kind is GraphKind.NONE:
        raise BundleError(f"its tensors ({', '.join(tensor.name for tensor, _ in inputs)}) fit no part of a decoder")


def _check_rows(names: Mapping[Role, BinaryTensor]) -> None:
    """What describes the rows: mask and rotation beside past keys and values, and never one without the other."""
    mask, cos, sin = (names.get(role) for role in (Role.MASK, Role.COS, Role.SIN))
    has_past = Role.KEY in names or Role.VALUE in names
    if mask is not None and not (set(names) & {*CACHES, *STATES}) and mask.shape[-2] != mask.shape[-1]:
        raise BundleError(
            f"tensor {mask.name} is {list(mask.shape)} and there are no past keys and values: a graph that keeps "
            "nothing needs a row for every column (AR == CL)"
        )
    if mask is not None or has_past:
        for wanted in (Role.MASK, Role.COS, Role.SIN):
            if wanted not in names:
                raise BundleError(f"input {wanted.value} is missing")
    if cos is not None and sin is not None and cos.shape != sin.shape:
        raise BundleError(f"tensor {sin.name} has shape {list(sin.shape)}, {cos.name} has {list(cos.shape)}")


def _slot(tensor: BinaryTensor, role: Meaning, rows: int, context: int | None, columns: int | None) -> Slot:
    """columns: what the last axis of keys must be; past ones for an input, rows for an output."""
    shape = _contract_shape(tensor, role, rows, context, columns)
    name = role.role.value if role.role is Role.LOGITS else tensor.name
    return Slot(tensor.name, role, msgspec.structs.replace(tensor.spec(), name=name, shape=shape))


def _contract_shape(
    tensor: BinaryTensor, role: Meaning, rows: int, context: int | None, columns: int | None
) -> tuple[int, ...]:
    """The contract's shape of equal bytes: exports differ in axes of length 1 only."""
    shape, last = tensor.shape, tensor.shape[-1] if tensor.shape else 1
    wanted: tuple[int, ...]
    match role.role:
        case Role.IDS:
            wanted = (1, rows)
        case Role.MASK:
            wanted = (1, 1, rows, context or 0)
        case Role.WINDOW_MASK | Role.COS | Role.SIN | Role.WINDOW_COS | Role.WINDOW_SIN:
            wanted = (1, 1, rows, last)
        case Role.EMBEDS | Role.HIDDEN | Role.LOGITS:
            wanted = (1, rows, last)
        case Role.CACHE_INDEX:
            wanted = (last,)
        case Role.LAYER_EMBEDS:
            if shape[:1] != (1,) or rows not in shape[1:2]:
                raise BundleError(f"tensor {tensor.name} has shape {list(shape)}; [1, {rows}, ...] is expected")
            return shape
        case Role.WEIGHT | Role.CONV_STATE | Role.RECURRENT_STATE | Role.IMAGE_ROWS | Role.IMAGE_FEATURES:
            return shape
        case Role.KEY | Role.VALUE | Role.WINDOW_KEY | Role.WINDOW_VALUE:
            return _cache_shape(tensor, role, columns)
    if math.prod(wanted) != math.prod(shape) or [d for d in wanted if d != 1] != [d for d in shape if d != 1]:
        raise BundleError(f"tensor {tensor.name} has shape {list(shape)}; {list(wanted)} is expected")
    return wanted


def _cache_shape(tensor: BinaryTensor, role: Meaning, columns: int | None) -> tuple[int, ...]:
    shape = tensor.shape
    if len(shape) != 4 or 1 not in shape[:2]:
        raise BundleError(f"tensor {tensor.name} has shape {list(shape)}; [heads, 1, ...] of rank 4 is expected")
    heads = shape[0] * shape[1]
    if role.head >= 0 and heads != 1:
        raise BundleError(f"tensor {tensor.name} has shape {list(shape)}: several heads under the name of one")
    is_key = role.role in (Role.KEY, Role.WINDOW_KEY)
    size, found = (shape[2], shape[3]) if is_key else (shape[3], shape[2])
    if found != columns:
        raise BundleError(f"tensor {tensor.name} has {found} columns in {list(shape)}; {columns} are expected")
    return (heads, 1, size, found) if is_key else (heads, 1, found, size)


def _check_caches(part: Part) -> None:
    """Every cache goes in and out, in one encoding: fresh bytes are stored as they come."""
    caches = {slot.meaning: slot.name for slot in [*part.inputs, *part.outputs] if slot.meaning.layer >= 0}
    for cache in sorted(caches, key=lambda item: (item.layer, item.head, item.role.value)):
        taken, given = _find(part.inputs, cache), _find(part.outputs, cache)
        if given is None:
            raise BundleError(f"tensor {caches[cache].removesuffix('_in')}_out is missing")
        if taken is None:
            raise BundleError(f"tensor {caches[cache].removesuffix('_out')}_in is missing: what is cached must be read")
        if taken.spec.encoding != given.spec.encoding:
            raise BundleError(
                f"tensors {taken.name} and {given.name} have different encodings ({taken.spec} and {given.spec}), "
                "so the cache cannot be stored as it is"
            )
