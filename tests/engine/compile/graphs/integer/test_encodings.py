"""Encodings by hand, and as the finished manifests carry them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.bundle.manifest import GraphKind, Manifest, TensorSpec
from engine.bundle.tensors import MASK, Encoding, encoding_of, place_of
from engine.compile.arguments import Quant, Split
from engine.compile.calibration.encodings import (
    HIDDEN_DEPTH,
    MASK_FLOOR,
    VALUE_SHARE,
    WIDE_KV_DTYPE,
    Groups,
    Observed,
    Range,
    choose_encodings,
    extreme_range,
    kv_encoding,
    mask_encoding,
    rotary_encoding,
    wide_encoding,
)
from engine.compile.graphs.graph_builder import FloatGraph

Make = Callable[..., tuple[Path, Manifest]]


def test_the_mask_is_the_two_extreme_codes() -> None:
    for floor in (MASK_FLOOR, -50.0):
        assert mask_encoding(floor).mask_codes().tolist() == [0, 65535]
        assert mask_encoding(floor).decode(np.array([0, 65535], np.uint16)).tolist() == pytest.approx([floor, 0.0])


def test_rotary_numbers_keep_the_contracts_encoding_until_they_are_stretched() -> None:
    assert rotary_encoding(1.0) == Encoding("uint16", float(np.float32(2 / 65535)), 32768)
    assert rotary_encoding(1.19).decode(np.array([65535], np.uint16))[0] == pytest.approx(1.19, abs=1e-4)


@pytest.mark.parametrize("span", [Range(-3.0, 5.0), Range(2.0, 4.0), Range(-4.0, -2.0), Range(0.0, 0.0)])
def test_sixteen_bits_hold_the_range_and_exactly_zero(span: Range) -> None:
    encoding = wide_encoding(span)
    values = np.array([span.low, 0.0, span.high])
    again = encoding.decode(encoding.encode(values))
    assert again[1] == 0.0
    np.testing.assert_allclose(again, values, atol=encoding.scale)


def test_caches_are_symmetric_around_128() -> None:
    encoding = kv_encoding(Range(-2.54, 1.0))
    assert (encoding.dtype, encoding.zero_point) == ("uint8", 128)
    assert encoding.encode(np.array([-2.54, 0.0, 2.54])).tolist() == [1, 128, 255]
    assert kv_encoding(Range(-2.54, 1.0), 0.5).encode(np.array([-2.54, 1.27])).tolist() == [0, 255]


def test_wide_caches_have_codes_whose_upper_byte_does_not_overflow() -> None:
    encoding = kv_encoding(Range(-2.54, 1.0), dtype=WIDE_KV_DTYPE)
    codes = encoding.encode(np.array([-2.54, 0.0, 2.54]))
    assert codes.tolist() == [-32512, 0, 32512] and (codes[2] + 128) >> 8 == 127


def test_groups_join_transitively() -> None:
    groups = Groups()
    for first, second in (("a", "b"), ("c", "d"), ("b", "d")):
        groups.tie(first, second)
    assert len({groups.find(key) for key in "abcd"}) == 1
    assert groups.find("e") == "e"


def seen(low: float, high: float) -> Observed:
    return Observed((Range(low, high),), 1)


def small_graph() -> FloatGraph:
    """x -> Mul -> Reshape -> y."""
    nodes = [onnx.helper.make_node("Mul", ["x", "x"], ["m"]), onnx.helper.make_node("Reshape", ["m", "s"], ["y"])]
    shape = onnx.numpy_helper.from_array(np.array([4], np.int64), "s")
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, [2, 2])], [info("y", 1, [4])], [shape])
    model = onnx.helper.make_model(graph)
    return FloatGraph(model, (TensorSpec("x", "float32", (2, 2)),), (TensorSpec("y", "float32", (4,)),), Path(), 1)


def test_a_cache_has_no_finer_step_than_what_is_narrowed_to_it() -> None:
    """The HTP (its emulator) would make 0.7 of values whose 16-bit step is 1.43 times that of the cache."""
    wide, cache = "past_value_0_out_wide", "past_value_0_out"
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [node("Mul", ["x", "x"], [wide]), node("Identity", [wide], [cache])]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [info("x", 1, [2])], [info(cache, 1, [2])]))
    graph = FloatGraph(model, (TensorSpec("x", "float32", (2,)),), (TensorSpec(cache, "float32", (2,)),), Path(), 1)
    for largest, is_kept in ((200.0, False), (0.3, True)):
        observed = {"x": seen(-1, 2), f"1/{wide}": seen(0, largest), cache: seen(-0.2, 0.2)}
        found = choose_encodings([graph], observed, 1.0, extreme_range)
        own = kv_encoding(Range(-0.2, 0.2), VALUE_SHARE)
        assert (found[cache] == own) is is_kept
        assert found[cache].scale == max(own.scale, found[f"1/{wide}"].scale) and found[cache].zero_point == 128


def test_what_only_moves_numbers_has_one_encoding() -> None:
    observed = {"x": seen(-1, 2), "1/m": seen(0, 4), "y": seen(-4, 0)}
    encodings = choose_encodings([small_graph()], observed, 1.0)
    assert encodings["1/m"] == encodings["y"] == wide_encoding(extreme_range(seen(-4, 4)))
    assert encodings["x"] == wide_encoding(Range(-1.1, 2.2))


def test_tensors_of_one_encoding_are_chosen_for_together() -> None:
    """Their extremes are joined text by text, and their values are counted together."""
    observed = {
        "x": seen(-1, 2),
        "1/m": Observed((Range(0, 4), Range(0, 1)), 10),
        "y": Observed((Range(-1, 0), Range(-3, 2)), 10),
    }
    asked: list[Observed] = []

    def noted(item: Observed) -> Range:
        asked.append(item)
        return Range(-1, 1)

    encodings = choose_encodings([small_graph()], observed, 1.0, noted)
    assert asked == [observed["x"], Observed((Range(-1, 4), Range(-3, 2)), 20)]
    assert encodings["y"] == wide_encoding(Range(-1, 1))
    with pytest.raises(ValueError, match="zip"):
        observed["x"].joined(observed["y"])


def test_what_attention_mixes_may_be_as_large_as_one_value() -> None:
    """Calibration saw means over many columns; a variant that sees one column alone must not clip it."""
    info = onnx.helper.make_tensor_value_info
    nodes = [
        onnx.helper.make_node("MatMul", ["w", "past_value_0_in"], ["seen"]),
        onnx.helper.make_node("MatMul", ["w", "past_value_0_out"], ["fresh"]),
        onnx.helper.make_node("Add", ["seen", "fresh"], ["y"]),
    ]
    names = ["w", "past_value_0_in", "past_value_0_out"]
    graph = onnx.helper.make_graph(nodes, "g", [info(name, 1, [1]) for name in names], [info("y", 1, [1])])
    specs = tuple(TensorSpec(name, "float32", (1,)) for name in names)
    made = FloatGraph(onnx.helper.make_model(graph), specs, (TensorSpec("y", "float32", (1,)),), Path(), 1)
    observed = {name: seen(-0.1, 0.1) for name in ("w", "1/seen", "1/fresh", "y")}
    observed |= {"past_value_0_in": seen(-3, 2), "past_value_0_out": seen(-4, 2)}
    encodings = choose_encodings([made], observed, 1.0)
    assert encodings["1/seen"] == encodings["1/fresh"] == encodings["y"] == wide_encoding(extreme_range(seen(-4, 2)))
    assert encodings["past_value_0_in"] == encodings["past_value_0_out"] == kv_encoding(Range(-4, 2), VALUE_SHARE)
    wide = choose_encodings([made], observed, 1.0, kv_dtype=WIDE_KV_DTYPE)
    assert wide["past_value_0_in"] == wide["past_value_0_out"] == kv_encoding(Range(-4, 2), dtype=WIDE_KV_DTYPE)


@pytest.mark.parametrize("scores", [Range(-4.0, 3.0), Range(-30.0, 70.0), Range(-700.0, 1200.0)])
def test_a_mask_hides_a_column_of_whatever_score(scores: Range) -> None:
    nodes = [onnx.helper.make_node("Add", ["s", MASK], ["t"]), onnx.helper.make_node("Softmax", ["t"], ["y"])]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(nodes, "g", [info("s", 1, [1]), info(MASK, 1, [1])], [info("y", 1, [1])])
    specs = tuple(TensorSpec(name, "float32", (1,)) for name in ("s", MASK, "y"))
    made = FloatGraph(onnx.helper.make_model(graph), specs[:2], specs[2:], Path(), 1)
    found = choose_encodings([made], {"s": Observed((scores,), 1)}, 1.0)
    ends = np.array([0, 65535], np.uint16)
    low, high = found["s"].decode(ends)
    floor, none = found[MASK].decode(ends)
    assert none == 0.0 and floor <= MASK_FLOOR and high + floor <= low - HIDDEN_DEPTH + 0.1
    sums = found["1/t"]
    assert sums.decode(sums.encode(np.array([high + floor])))[0] <= low - HIDDEN_DEPTH + 0.1
    assert sums.decode(sums.encode(np.array([low, high]))) == pytest.approx([low, high], abs=sums.scale)
    assert sums.scale < 1.1 * (high - low + HIDDEN_DEPTH) / 65535


def test_a_tensor_nobody_observed_is_an_error() -> None:
    with pytest.raises(KeyError, match="1/m"):
        choose_encodings([small_graph()], {"x": seen(-1, 2), "y": seen(-4, 0)}, 1.0)


@pytest.mark.parametrize("quant", [Quant.W8A16, Quant.W4A16])
def test_a_manifest_has_the_contracts_types_and_every_encoding(integer_bundle: Make, quant: Quant) -> None:
    _, manifest = integer_bundle(quant)
    assert manifest.kv_dtype == "uint8"
    seen: dict[str, TensorSpec] = {}
    for graph in manifest.graphs:
        for tensor in (*graph.inputs, *graph.outputs):
            if tensor.name == "input_ids":
                assert tensor.dtype == "int32"
                continue
            is_cache = place_of(tensor.name, "_in") or place_of(tensor.name, "_out")
            assert tensor.dtype == ("uint8" if is_cache else "uint16")
            assert encoding_of(tensor) == encoding_of(seen.setdefault(tensor.name, tensor)), "variants differ"
    assert encoding_of(seen["attention_mask"]) == mask_encoding(-100.0)
    assert encoding_of(seen["position_ids_cos"]) == encoding_of(seen["position_ids_sin"]) == rotary_encoding(1.0)
    for layer in range(manifest.model.layers):
        for kind in ("key", "value"):
            fresh, cached = seen[f"past_{kind}_{layer}_out"], seen[f"past_{kind}_{layer}_in"]
            assert encoding_of(fresh) == encoding_of(cached)
            assert fresh.zero_point == 128
    scales = {tensor.scale for name, tensor in seen.items() if place_of(name, "_in")}
    assert len(scales) == 2 * manifest.model.layers  # each layer, keys and values apart


@pytest.mark.parametrize("split", [Split.LMHEAD, Split.LUT_LMHEAD])
def test_hidden_states_cross_parts_as_they_are(integer_bundle: Make, split: Split) -> None:
    _, manifest = integer_bundle(Quant.W8A16, split)
    given = {tensor.name: encoding_of(tensor) for graph in manifest.graphs for tensor in graph.outputs}
    borders = 0
    for graph in manifest.graphs:
        if graph.kind is GraphKind.LMHEAD or (graph.kind is GraphKind.DECODER and split is Split.LUT_LMHEAD):
            assert encoding_of(graph.inputs[0]) == given[graph.inputs[0].name]
            borders += 1
    assert borders
