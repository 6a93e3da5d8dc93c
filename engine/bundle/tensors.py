"""Names, shapes and number types of a bundle's tensors."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TensorSpec
from engine.errors import BundleError

Array = NDArray[np.generic]
FLOATS = {"float32": -1e30, "float16": -30000.0}  # additive mask of a column that must not be seen
INTEGERS = ("uint8", "uint16", "int8", "int16")


@dataclass(frozen=True, slots=True)
class Encoding:
    """Type and, for integers, scale and zero point (ONNX sign) of a tensor."""

    dtype: str
    scale: float = 1.0
    zero_point: int = 0

    @property
    def is_float(self) -> bool:
        """Whether numbers are stored as they are."""
        return self.dtype in FLOATS

    def encode(self, values: NDArray[np.float64]) -> Array:
        """Round to the nearest code and clamp; float64 of any shape in, the same shape out."""
        if self.is_float:
            return values.astype(self.dtype)
        limits = np.iinfo(self.dtype)
        codes = np.clip(np.rint(values / self.scale) + self.zero_point, limits.min, limits.max)
        return np.asarray(codes.astype(self.dtype))

    def decode(self, codes: Array) -> NDArray[np.float32]:
        """Real numbers of stored ones."""
        if self.is_float:
            return np.asarray(codes, np.float32)
        return (codes.astype(np.float32) - np.float32(self.zero_point)) * np.float32(self.scale)

    def mask_codes(self) -> Array:
        """[2]: the code of a column that is hidden, then of one that is seen (which must be exactly 0)."""
        if self.is_float:
            return np.array([FLOATS[self.dtype], 0.0], self.dtype)
        codes = self.encode(np.array([-np.inf, 0.0]))
        if self.decode(codes[1:])[0] != 0.0:
            raise BundleError(f"the attention mask cannot say 0: scale {self.scale}, zero point {self.zero_point}")
        return codes


def encoding_of(tensor: TensorSpec) -> Encoding:
    """Encoding of a tensor; BundleError when it is of another type or lacks its scale."""
    if tensor.dtype in FLOATS:
        return Encoding(tensor.dtype)
    if tensor.dtype not in INTEGERS:
        raise BundleError(f"tensor {tensor.name} has the unsupported type {tensor.dtype}")
    if tensor.scale is None or tensor.zero_point is None:
        raise BundleError(f"tensor {tensor.name} is {tensor.dtype} but has no scale or zero point")
    return Encoding(tensor.dtype, tensor.scale, tensor.zero_point)


PAST_NAME = re.compile(r"past_(?:nativekvcache__)?(key|value)_(\d+)(?:_h(?:ead_)?(\d+))?(_in|_out)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies in the caches. side: 0 for keys, 1 for values; head: None for all heads of the layer."""

    side: int
    layer: int
    head: int | None = None

    def of(self, keys: Array, values: Array) -> Array:
        """The view of arrays [L, K, ...]: [K, ...], for one head [1, ...]."""
        array: Array = (keys, values)[self.side][self.layer]
        return array if self.head is None else array[self.head : self.head + 1]


def place_of(name: str, suffix: str) -> Place | None:
    """The place of past_key_<layer>_in, past_key_<layer>_h<head>_in and their kin; None for any other tensor."""
    found = PAST_NAME.fullmatch(name)
    if found is None or found[4] != suffix:
        return None
    return Place(0 if found[1] == "key" else 1, int(found[2]), int(found[3]) if found[3] else None)


CARRIED_NAME = re.compile(r"(swa_key|swa_value|conv_state|recurrent_state)_(\d+)(?:_h(?:ead_)?(\d+))?(_in|_out)")


class Carry(Enum):
    """How what a graph carries from step to step goes on."""

    KEYS = "keys"  # [K, 1, D, columns]: columns of fresh tokens are written behind those of the past
    VALUES = "values"  # [K, 1, columns, D]
    WINDOW_KEYS = "window keys"  # the same, over the columns of the oldest tokens
    WINDOW_VALUES = "window values"
    STATE = "state"  # the output takes the place of the input


_CARRIES = {
    "swa_key": Carry.WINDOW_KEYS,
    "swa_value": Carry.WINDOW_VALUES,
    "conv_state": Carry.STATE,
    "recurrent_state": Carry.STATE,
}


def carry_of(name: str, suffix: str) -> Carry | None:
    """How a tensor of this name and side, "_in" or "_out", goes on; None for what is no cache and no state."""
    if (place := place_of(name, suffix)) is not None:
        return Carry.VALUES if place.side else Carry.KEYS
    found = CARRIED_NAME.fullmatch(name)
    return _CARRIES[found[1]] if found is not None and found[4] == suffix else None


def pool_window_slots(manifest: Manifest) -> int:
    """Columns of a pool's layers with a window, where these have fewer than other layers; 0 = as many."""
    model, most, own = manifest.model, 0, 0
    for graph in manifest.graphs if any(model.layer_windows) and not model.sight else ():
        if graph.rows is None or graph.context is None:
            continue
        most = max(most, graph.context - graph.rows)
        for tensor in graph.inputs:
            place = place_of(tensor.name, "_in")
            is_value = place is not None and place.side and place.layer < model.layers
            if place is not None and is_value and model.attention_of(place.layer).window:
                own = max(own, int(tensor.shape[-2]))
    return own if own < most else 0


def is_scatter(graphs: Iterable[GraphSpec]) -> bool:
    """Whether fresh columns are written inside the past buffers at `cache_index`, instead of joined behind them."""
    return any(tensor.name == "cache_index" for graph in graphs for tensor in graph.inputs)


EMBEDS = ("inputs_embeds", "input_embeds")
LAYER_EMBEDS = "per_layer_inputs"

# The row inputs that every kind of graph has, and what the last graph gives.
IDS, MASK, COS, SIN = "input_ids", "attention_mask", "position_ids_cos", "position_ids_sin"
LOGITS = "logits"
ROTARY = {COS: True, SIN: False}
WINDOW_MASK = "swa_attention_mask"
WINDOW_ROTARY = {"swa_position_ids_cos": True, "swa_position_ids_sin": False}

WITH_LAYERS = (GraphKind.DECODER, GraphKind.DECODER_PREFILL, GraphKind.DEFAULT)


def embedding_width(manifest: Manifest) -> int | None:
    """Numbers of one token's embedding; None for a bundle that takes token ids only."""
    if manifest.embedding is not None:
        return manifest.embedding.width
    if manifest.vision is not None:
        return manifest.model.hidden
    tables = [graph for graph in manifest.graphs if graph.kind is GraphKind.LUT]
    layers = [graph for graph in manifest.graphs if graph.kind in WITH_LAYERS]
    takes_ids = any(tensor.name == "input_ids" for graph in layers for tensor in graph.inputs)
    if not tables or takes_ids or manifest.is_segmented or manifest.reads_whole_context:
        return None
    width = embedding_of(tables[0]).shape[-1]
    return width if isinstance(width, int) else None


def embedding_of(table: GraphSpec) -> TensorSpec:
    """What an embedding graph gives: hidden states [1, N, H]."""
    (given,) = table.outputs
    return given


Form = tuple[str, tuple[int | str, ...]]  # type, "" = any; shape, where axes of length 1 do not count

FREE_ROWS, FREE_LOGIT_ROWS, FREE_CONTEXT, FREE_PAST = "rows", "logit_rows", "context", "past"
FREE_COLUMNS = "columns"


def check_form(spec: GraphSpec, side: str, tensor: TensorSpec, wanted: Form | None) -> None:
    """BundleError when a tensor has another form; None = any will do."""
    if wanted is None:
        return
    dtype, shape = wanted
    if (dtype and dtype != tensor.dtype) or _long(tensor.shape) != _long(shape):
        raise BundleError(
            f"graph {spec.name} {side} {tensor.name} is {tensor.dtype} {list(tensor.shape)} in the manifest, whose "
            f"rows, context and model want {dtype or 'numbers'} {list(shape)}"
        )


def row_forms(manifest: Manifest, rows: int | str, context: int | str) -> dict[str, Form]:
    """The row inputs of a graph over rows of which each sees `context` columns."""
    half: Form = ("", (rows, manifest.model.rope.rotary_dim // 2))
    return {IDS: ("int32", (rows,)), MASK: ("", (rows, context)), COS: half, SIN: half}


def check_forms(spec: GraphSpec, inputs: dict[str, Form], outputs: dict[str, Form]) -> None:
    """BundleError unless the graph has exactly these tensors, in these forms."""
    for side, tensors, wanted in (("input", spec.inputs, inputs), ("output", spec.outputs, outputs)):
        names = [tensor.name for tensor in tensors]
        missing, unknown = sorted(wanted.keys() - set(names)), sorted(set(names) - wanted.keys())
        faults = [f"lacks the {side}s {missing}"] if missing else []
        faults += [f"has the unknown {side}s {unknown}"] if unknown else []
        faults += [f"has an {side} twice"] if len(names) > len(set(names)) else []
        if faults:
            raise BundleError(f"graph {spec.name} {' and '.join(faults)}")
        for tensor in tensors:
            check_form(spec, side, tensor, wanted[tensor.name])


def _long(shape: Sequence[int | str]) -> list[int | str]:
    return [size for size in shape if size != 1]


IN, OUT = "_in", "_out"
KEYS = (Carry.KEYS, Carry.WINDOW_KEYS)
WINDOWS = (Carry.WINDOW_KEYS, Carry.WINDOW_VALUES)


def carried_inputs(graphs: Iterable[GraphSpec]) -> dict[str, TensorSpec]:
    """The tensors that graphs of one shape carry, by the names of their inputs."""
    return {item.name: item for graph in graphs for item in graph.inputs if carry_of(item.name, IN) is not None}


def window_columns(graphs: Iterable[GraphSpec]) -> int:
    """W of graphs of one shape, 0 where they have no window."""
    for name, spec in carried_inputs(graphs).items():
        if carry_of(name, IN) is Carry.WINDOW_KEYS:
            return int(spec.shape[3])
    return 0


def check_serial(manifest: Manifest) -> None:
    """BundleError unless every graph gives what it carries in the form in which it takes it."""
    for graph in manifest.graphs:
        if graph.kind is GraphKind.LMHEAD:
            continue
        given = {tensor.name: tensor for tensor in graph.outputs}
        for name, taken in carried_inputs([graph]).items():
            other = given.get(name.removesuffix(IN) + OUT)
            if other is None or other.encoding != taken.encoding:
                raise BundleError(f"graph {graph.name} takes {name} and does not give it in the same encoding")
            if carry_of(name, IN) is Carry.STATE and other.shape != taken.shape:
                raise BundleError(f"graph {graph.name} takes {name} as {list(taken.shape)}, gives {list(other.shape)}")
        names = {tensor.name for tensor in graph.inputs}
        if window_columns([graph]) and not (manifest.window and WINDOW_MASK in names):
            raise BundleError(f"graph {graph.name} has window caches, but no {WINDOW_MASK} or no size of a window")
        if names & set(WINDOW_ROTARY) and manifest.model.local_rope is None:
            raise BundleError(f"graph {graph.name} takes a rotation for windows, of which the manifest tells nothing")
