"""One encoding (type, scale, zero point) for every activation, from the ranges that calibration saw. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from engine.bundle.encoding import Encoding
from engine.bundle.tensor_names import place_of
from engine.compile.layers import MASK_INPUT
from engine.compile.lowering import COS_INPUT, SIN_INPUT
from engine.compile.qdq.float_graph import DEQUANTIZE, FloatGraph
from engine.compile.qdq.ranges import ChooseRange, Observed, Range, extreme_range

WIDE_DTYPE, KV_DTYPE = "uint16", "uint8"
WIDE_CODES = 65535
KV_ZERO, KV_LARGEST = 128, 127
MASK_FLOOR = -100.0

ROTARY_INPUTS = (COS_INPUT, SIN_INPUT)
SHARE_ENCODING = Encoding(WIDE_DTYPE, 1.0 / 65536, 0)
FIXED_OPERATORS = {"Softmax": SHARE_ENCODING, "Sigmoid": SHARE_ENCODING}

# Operators that only move numbers: the back end wants one encoding on all their sides.
MOVERS = {"Reshape", "Transpose", "Split", "Concat", "Expand", "Gather"}


class Groups:
    """Tensors that must share one encoding, as disjoint sets of keys."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, key: str) -> str:
        """The key that stands for the set of `key`."""
        while self._parent.setdefault(key, key) != key:
            key = self._parent[key]
        return key

    def tie(self, first: str, second: str) -> None:
        """Join the sets of two keys."""
        self._parent[self.find(second)] = self.find(first)


def choose_encodings(
    graphs: Sequence[FloatGraph],
    observed: Mapping[str, Observed],
    rotary_factor: float,
    choose: ChooseRange = extreme_range,
    mask_floor: float = MASK_FLOOR,
) -> dict[str, Encoding]:
    """An encoding for the key of every activation of all parts; KeyError when one was never observed.

    Fresh keys and values have the encoding of the cached ones, so that their bytes can be copied. The mask reaches
    from `mask_floor` to 0. choose: makes a range of what was observed, but for caches: those have the extremes, as at
    8 bits too little clipping is worth its error, least of all that of keys, where the largest are those looked for.
    """
    groups = tied(graphs)
    inputs = {MASK_INPUT: mask_encoding(mask_floor), **dict.fromkeys(ROTARY_INPUTS, rotary_encoding(rotary_factor))}
    fixed = {groups.find(key): encoding for graph in graphs for key, encoding in _fixed(graph, inputs)}
    keys = {graph.key(name): name for graph in graphs for name in graph.activations()}
    joined: dict[str, Observed] = {}
    for key in keys:
        if groups.find(key) not in fixed:
            _join(joined, groups.find(key), observed[key])
    for graph in graphs:
        for output, value in _mixtures(graph):
            _join(joined, groups.find(graph.key(output)), observed[value])
    narrow = {groups.find(key) for key, name in keys.items() if _is_cache(name)}
    measured = {
        root: kv_encoding(seen.extremes) if root in narrow else wide_encoding(choose(seen))
        for root, seen in joined.items()
    }
    return {key: (fixed | measured)[groups.find(key)] for key in keys}


def tied(graphs: Iterable[FloatGraph]) -> Groups:
    """Which activations share an encoding."""
    groups = Groups()
    for graph in graphs:
        names = set(graph.activations())
        for name in names:
            if place_of(name, "_in") is not None:
                groups.tie(name, name.removesuffix("_in") + "_out")
        for node in graph.model.graph.node:
            if node.op_type in MOVERS:
                sides = [name for name in (*node.input, *node.output) if name in names]
                for name in sides[1:]:
                    groups.tie(graph.key(sides[0]), graph.key(name))
        mixed = {output for output, _ in _mixtures(graph)}
        for node in graph.model.graph.node:
            if node.op_type == "Add" and mixed.issuperset(node.input):
                for name in node.input:
                    groups.tie(graph.key(node.output[0]), graph.key(name))
    return groups


def _mixtures(graph: FloatGraph) -> Iterator[tuple[str, str]]:
    """Results of attention and the values they mix.

    A mean of values lies in the values' range. Over how many columns it goes depends on the text and on the variant,
    so what calibration saw of it says little: one column alone is as large as a value.
    """
    for node in graph.model.graph.node:
        place = place_of(node.input[1], "_in") or place_of(node.input[1], "_out") if len(node.input) > 1 else None
        if node.op_type == "MatMul" and place is not None and place.side == 1:
            yield node.output[0], f"past_value_{place.layer}_out"


def _join(joined: dict[str, Observed], root: str, seen: Observed) -> None:
    joined[root] = joined[root].joined(seen) if root in joined else seen


def score_span(graphs: Iterable[FloatGraph], observed: Mapping[str, Observed]) -> float:
    """The widest range of attention scores, before the mask, of any layer."""
    spans = [0.0]
    for graph in graphs:
        masked = {node.input[0] for node in graph.model.graph.node if node.op_type == "Softmax"}
        for node in graph.model.graph.node:
            if masked.intersection(node.output):
                seen = observed[graph.key(node.input[0])].extremes
                spans.append(seen.high - seen.low)
    return max(spans)


def wide_encoding(seen: Range) -> Encoding:
    """16 bits over the range and zero."""
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    scale = _single((high - low) / WIDE_CODES or 1.0)
    return Encoding(WIDE_DTYPE, scale, round(-low / scale))


def kv_encoding(seen: Range) -> Encoding:
    """8 bits, symmetric: code 128 is zero."""
    return Encoding(KV_DTYPE, _single(max(-seen.low, seen.high) / KV_LARGEST or 1.0), KV_ZERO)


def _single(scale: float) -> float:
    """As the graphs store it."""
    return float(np.float32(scale))


def rotary_encoding(factor: float) -> Encoding:
    """Cosines and sines share it: the contract's 2 / 65535, wider only where the rotation also stretches."""
    return Encoding(WIDE_DTYPE, _single(2.0 * max(1.0, factor) / WIDE_CODES), 32768)


def mask_encoding(floor: float) -> Encoding:
    """The largest code is 0, exactly; code 0 is the floor."""
    return Encoding(WIDE_DTYPE, _single(-floor / WIDE_CODES), WIDE_CODES)


def _fixed(graph: FloatGraph, inputs: Mapping[str, Encoding]) -> Iterator[tuple[str, Encoding]]:
    """Keys whose encoding does not depend on what was observed."""
    for tensor in graph.inputs:
        if tensor.name in inputs:
            yield tensor.name, inputs[tensor.name]
    tables = {node.output[0]: node for node in graph.model.graph.node if node.op_type == DEQUANTIZE}
    for node in graph.model.graph.node:
        if node.op_type in FIXED_OPERATORS:
            yield graph.key(node.output[0]), FIXED_OPERATORS[node.op_type]
        elif node.op_type == "Gather" and node.input[0] in tables:
            _, scale, zero = tables[node.input[0]].input
            encoding = Encoding(WIDE_DTYPE, float(graph.value(scale)), int(graph.value(zero)))
            yield graph.key(node.output[0]), encoding


def _is_cache(name: str) -> bool:
    return place_of(name, "_in") is not None or place_of(name, "_out") is not None
