"""One encoding (type, scale, zero point) for every activation, from the ranges that calibration saw. Pure.

Rounding: step² / 12 for each value. Clipping: the largest value of a text is taken to lie above the smallest of these
largest values, u, by an exponentially distributed amount, of which the mean excess b is the likeliest mean. Beyond r
then lies exp(-(r - u) / b) of the texts, each by b on average, so that a text loses 2 b² exp(-(r - u) / b).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.bundle.tensors import MASK, WINDOW_MASK, Encoding, Place, place_of
from engine.compile.graphs.graph_builder import DEQUANTIZE, WIDE, FloatGraph
from engine.compile.graphs.lowering import LOCAL_TABLES, PLAIN_TABLES

# Room for what the calibration text did not show; at 16 bits it costs next to nothing.
MARGIN = 1.1


@dataclass(frozen=True, slots=True)
class Range:
    low: float
    high: float

    def joined(self, other: "Range") -> "Range":
        return Range(min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True, slots=True)
class Observed:
    """Extremes of each text, in their order, and how many values a text has: all that is kept of an activation."""

    texts: tuple[Range, ...]
    values: int

    @property
    def extremes(self) -> Range:
        return Range(min(text.low for text in self.texts), max(text.high for text in self.texts))

    def joined(self, other: "Observed") -> "Observed":
        """Of two activations that share an encoding; ValueError unless the same texts were seen."""
        texts = tuple(mine.joined(theirs) for mine, theirs in zip(self.texts, other.texts, strict=True))
        return Observed(texts, self.values + other.values)


ChooseRange = Callable[[Observed], Range]


def extreme_range(seen: Observed) -> Range:
    return Range(seen.extremes.low * MARGIN, seen.extremes.high * MARGIN)


Float64 = NDArray[np.float64]

STEPS = 65535
LEAST_TEXTS = 4  # fewer say nothing of another text
# Ends of the range over the extreme that was seen; the largest bounds what one odd text may cost all others.
SHARES = np.linspace(1.0, 2.5, 61)


def error_range(seen: Observed) -> Range:
    """Holds all that was seen, and zero. Few texts: their extremes, as `extreme_range` has them."""
    if len(seen.texts) < LEAST_TEXTS:
        return extreme_range(seen)
    highs = np.array([max(text.high, 0.0) for text in seen.texts])
    lows = np.array([max(-text.low, 0.0) for text in seen.texts])
    high, low = SHARES * highs.max(), SHARES * lows.max()
    clipped = clipping_error(highs, high)[:, None] + clipping_error(lows, low)
    errors = clipped + rounding_error(high[:, None] + low, seen.values)
    first, second = np.unravel_index(int(np.argmin(errors)), errors.shape)
    return Range(-float(low[second]), float(high[first]))


def clipping_error(tops: Float64, ends: Float64) -> Float64:
    """Expected of a text, for each of `ends` [E]. tops [texts]: the largest value of each."""
    least = float(tops.min())
    excess = float(tops.mean()) - least
    if excess == 0:  # every text reaches as far, and no candidate ends before
        return np.zeros(len(ends), np.float64)
    return np.asarray(2 * excess**2 * np.exp(-(ends - least) / excess), np.float64)


def rounding_error(widths: Float64, values: int) -> Float64:
    """Expected of a text with so many values, for each width of a range."""
    return np.asarray(values * np.square(widths / STEPS) / 12, np.float64)


WIDE_DTYPE, KV_DTYPE, WIDE_KV_DTYPE = "uint16", "uint8", "int16"
WIDE_CODES = 65535
# Zero and the largest code of caches. The HTP multiplies 16 bits as two bytes, of which the upper must not round up to
# 128; of uint16 in this place it takes the upper byte alone (its emulator).
KV_CODES = {KV_DTYPE: (128, 127), WIDE_KV_DTYPE: (0, 127 * 256)}
# Of values in 8 bits: on published models caches of them lose 40 % less than with all.
VALUE_SHARE = 0.85
MASK_FLOOR = -100.0  # or deeper, where scores reach further
# How far a hidden column's score is below every score that can be seen: its share is exp(-32) of a 16-bit one.
HIDDEN_DEPTH = 32.0

ROTARY_INPUTS = (*PLAIN_TABLES, *LOCAL_TABLES)
MASK_INPUTS = (MASK, WINDOW_MASK)
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
    kv_dtype: str = KV_DTYPE,
) -> dict[str, Encoding]:
    """An encoding for the key of every activation of all parts; KeyError when one was never observed.

    Fresh keys and values have the encoding of the cached ones, so that their bytes can be copied. The mask reaches
    down so far that it hides a column of whatever score. choose: makes a range of what was observed, but for caches,
    for which 8 bits are few: keys have the extremes, as the largest are those looked for, and values `VALUE_SHARE` of
    theirs. kv_dtype: of caches."""
    groups = tied(graphs)
    inputs = dict.fromkeys(ROTARY_INPUTS, rotary_encoding(rotary_factor))
    fixed = {groups.find(key): encoding for graph in graphs for key, encoding in _fixed(graph, inputs)}
    names = {graph.key(name): name for graph in graphs for name in graph.activations()}
    places = {key: place for key, name in names.items() if (place := _cache(name))}
    shares = (1.0, VALUE_SHARE if kv_dtype == KV_DTYPE else 1.0)
    caches = {groups.find(key): shares[place.side] for key, place in places.items()}
    masks = {groups.find(tensor.name) for graph in graphs for tensor in graph.inputs if tensor.name in MASK_INPUTS}
    sums = {groups.find(graph.key(total)) for graph in graphs for total, _ in _masked_scores(graph)}
    unseen = fixed.keys() | masks | sums
    seen = [(key, observed[key]) for key in names if groups.find(key) not in unseen]
    # What attention gives lies in the range of the values that it mixes, whatever the text showed of it.
    seen += [(graph.key(output), observed[value]) for graph in graphs for output, value in _mixtures(graph)]
    joined: dict[str, Observed] = {}
    for key, each in seen:
        group = groups.find(key)
        joined[group] = joined[group].joined(each) if group in joined else each
    chosen = fixed | {
        group: kv_encoding(each.extremes, caches[group], kv_dtype) if group in caches else wide_encoding(choose(each))
        for group, each in joined.items()
    }
    found = {key: chosen[groups.find(key)] for key in names if groups.find(key) in chosen}
    masked, floor = _masked(graphs, found)
    found |= masked | {key: mask_encoding(floor) for key in names if groups.find(key) in masks}
    return found | dict(_no_finer_caches(found, names))


def _masked(graphs: Iterable[FloatGraph], found: Mapping[str, Encoding]) -> tuple[dict[str, Encoding], float]:
    """Encodings of masked scores by key, from those of the scores, and how deep a mask is that hides in all layers. A
    mask of -100 would not: scores of Qwen2 span 1,900, and an empty or another sequence's column can have any."""
    sums, widest = dict[str, Encoding](), 0.0
    for graph in graphs:
        for total, scores in _masked_scores(graph):
            encoding = found[graph.key(scores)]
            low, high = (float(encoding.decode(np.array([code], WIDE_DTYPE))[0]) for code in (0, WIDE_CODES))
            sums[graph.key(total)] = wide_encoding(Range(low - HIDDEN_DEPTH, high))
            widest = max(widest, high - low)
    return sums, min(MASK_FLOOR, -widest - HIDDEN_DEPTH)


def _masked_scores(graph: FloatGraph) -> Iterator[tuple[str, str]]:
    """What softmaxes read that is a sum of scores and a mask, with the scores."""
    read = {node.input[0] for node in graph.model.graph.node if node.op_type == "Softmax"}
    for node in graph.model.graph.node:
        if node.op_type == "Add" and read.intersection(node.output):
            yield node.output[0], node.input[0]


def _no_finer_caches(found: Mapping[str, Encoding], names: Mapping[str, str]) -> Iterator[tuple[str, Encoding]]:
    """Caches whose step is finer than that of the 16-bit integers which are narrowed to them get that step. It loses
    nothing, and the HTP makes no codes that are further apart than the 16-bit ones they are made of (its emulator)."""
    least = {
        name.removesuffix(WIDE).removesuffix("_out"): found[key].scale
        for key, name in names.items()
        if name.endswith(WIDE)
    }
    for key, name in names.items():
        step = least.get(name.removesuffix("_in").removesuffix("_out"), 0.0) if _cache(name) else 0.0
        if found[key].scale < step:
            yield key, replace(found[key], scale=step)


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
    """Results of attention and the values they mix. A mean of values lies in the values' range. Over how many columns
    it goes depends on the text and on the variant, so what calibration saw of it says little: one column alone is as
    large as a value."""
    for node in graph.model.graph.node:
        place = _cache(node.input[1]) if len(node.input) > 1 else None
        if node.op_type == "MatMul" and place is not None and place.side == 1:
            yield node.output[0], f"past_value_{place.layer}_out"


def wide_encoding(seen: Range) -> Encoding:
    """16 bits over the range and zero."""
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    scale = _single((high - low) / WIDE_CODES or 1.0)
    return Encoding(WIDE_DTYPE, scale, round(-low / scale))


def kv_encoding(seen: Range, share: float = 1.0, dtype: str = KV_DTYPE) -> Encoding:
    """Symmetric, of a type of `KV_CODES`. share: of the largest magnitude that is held."""
    zero, largest = KV_CODES[dtype]
    return Encoding(dtype, _single(share * max(-seen.low, seen.high) / largest or 1.0), zero)


def _single(scale: float) -> float:
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


def _cache(name: str) -> Place | None:
    return place_of(name, "_in") or place_of(name, "_out")
