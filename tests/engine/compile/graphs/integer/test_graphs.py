"""The written integer graphs: what onnx says to them, where floats may flow, what calibration saw."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from engine.bundle.manifest import Manifest
from engine.bundle.variant import StepShape
from engine.compile.arguments import CompileArguments, Quant, Split
from engine.compile.calibration.documents import samples, token_sequences
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.errors import CompileError
from tests.plain_bundle import ChainedSequence, PartChain

Make = Callable[..., tuple[Path, Manifest]]
QUANTISERS = ("QuantizeLinear", "DequantizeLinear")


@pytest.mark.parametrize("quant", [Quant.W8A16, Quant.W4A16])
def test_every_operator_stands_between_quantisers(integer_bundle: Make, quant: Quant) -> None:
    folder, manifest = integer_bundle(quant)
    for spec in manifest.graphs:
        onnx.checker.check_model(str(folder / spec.file))
        graph = onnx.load(str(folder / spec.file), load_external_data=False).graph
        makers = {name: node.op_type for node in graph.node for name in node.output}
        constants = {tensor.name: tensor.data_type for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type in QUANTISERS:
                continue
            for name in node.input:
                assert makers.get(name) == "DequantizeLinear" or constants.get(name) != onnx.TensorProto.FLOAT
                assert name not in makers or makers[name] == "DequantizeLinear", f"{node.name} reads a bare float"
            for name in node.output:
                assert [user.op_type for user in graph.node if name in user.input] == ["QuantizeLinear"]


def test_neighbouring_graphs_differ_in_shape_only(integer_bundle: Make) -> None:
    folder, manifest = integer_bundle()
    layers = [spec for spec in manifest.graphs if spec.context]
    found = []
    for spec in layers:
        graph = onnx.load(str(folder / spec.file), load_external_data=False).graph
        scales = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer if t.name.startswith("scale_")}
        found.append(([(node.op_type, tuple(node.output)) for node in graph.node], scales))
    for nodes, scales in found[1:]:
        assert nodes == found[0][0]
        assert scales == found[0][1]


@pytest.mark.parametrize("split", [Split.NONE, Split.LMHEAD, Split.LUT_LMHEAD])
def test_splits_agree(integer_bundle: Make, split: Split, prompt: list[int]) -> None:
    folder, manifest = integer_bundle(Quant.W8A16, split)
    shape = StepShape(32, 96)
    logits = ChainedSequence.start(folder, manifest, shape).extend(prompt[:32])
    base = ChainedSequence.start(*integer_bundle(), shape).extend(prompt[:32])
    np.testing.assert_array_equal(logits, base)


def test_optimised_graphs_keep_every_rounding(integer_bundle: Make, prompt: list[int]) -> None:
    """onnxruntime's rewrites of quantiser pairs may not skip one: the NPU does not either."""
    folder, manifest = integer_bundle()

    def unoptimised(path: Path) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    shape = StepShape(32, 96)
    plain = ChainedSequence.on(PartChain(folder, manifest, shape, unoptimised), manifest, shape)
    fused = ChainedSequence.start(folder, manifest, shape)
    for start in (0, 8):
        first, second = plain.advance(prompt[start : start + 8]), fused.advance(prompt[start : start + 8])
        for name in ("past_key_0_out", "past_value_1_out", "logits"):
            difference = first[name].astype(int) - second[name].astype(int)
            assert np.abs(difference).max() <= (1 if "past" in name else 64), name


def test_the_manifest_keeps_what_quality_was_found(integer_bundle: Make) -> None:
    _, manifest = integer_bundle()
    assert {"tokens", "top1", "kl"} <= manifest.parity.keys()
    assert msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest) == manifest


def test_calibration_text_fills_whole_sequences(integer_bundle: Make) -> None:
    folder, manifest = integer_bundle()
    made = token_sequences(["abc " * 30, "de " * 90], folder, manifest.text, manifest.model.vocab, 64, 5)
    assert made and all(len(item) == 64 for item in made)
    assert [len(item) for item in token_sequences(["ab"], folder, manifest.text, manifest.model.vocab, 64, 5)] == [64]


def test_calibration_on_a_file(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Another text, other ranges; a file that says nothing is refused."""
    made = []
    for text in ("aaaa " * 200, ""):
        file = tmp_path / "text.txt"
        file.write_text(text)
        arguments = CompileArguments(
            tiny_checkpoint,
            tmp_path / f"bundle{len(text)}",
            quant=Quant.W8A16,
            rows=(8,),
            context=(64,),
            calibration=file,
            parity_tokens=4,
        )
        if not text:
            with pytest.raises(CompileError, match=r"text\.txt is empty"):
                compile_bundle(arguments, SilentProgress())
            assert not arguments.output.exists()
            continue
        made.append(compile_bundle(arguments, SilentProgress()))
    usual = CompileArguments(
        tiny_checkpoint, tmp_path / "usual", quant=Quant.W8A16, rows=(8,), context=(64,), parity_tokens=4
    )
    made.append(compile_bundle(usual, SilentProgress()))
    assert made[0].graphs[0].outputs[0].scale != made[1].graphs[0].outputs[0].scale
    assert not list((tmp_path / "usual").glob("calibration*"))


def test_calibration_sees_what_the_graph_computes(integer_bundle: Make) -> None:
    """No code of a calibration text lies beyond its encoding: a range that missed something would clip here.

    Cached values are clipped with intent.
    """
    folder, manifest = integer_bundle()
    texts = token_sequences(
        [each for each in samples() if isinstance(each, str)], folder, manifest.text, manifest.model.vocab, 128, 2
    )
    shape = StepShape(32, 96)
    sequence = ChainedSequence.start(folder, manifest, shape)
    for start in range(0, 96, 32):
        outputs = sequence.advance(texts[0][start : start + 32])
        tensors = [tensor for graph in manifest.graphs for tensor in graph.outputs]
        for spec in (tensor for tensor in tensors if "past_value" not in tensor.name):
            limits = np.iinfo(spec.dtype)
            assert outputs[spec.name].min() > limits.min, spec.name
            assert outputs[spec.name].max() < limits.max, spec.name
