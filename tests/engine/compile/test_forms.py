"""Every storage form of table, layers and head, and both lowerings, against the float reference."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from engine.bundle.manifest import Manifest
from engine.bundle.variant import StepShape
from engine.compile.arguments import Quant, Split
from engine.compile.graphs.lowering import PLAIN, Lowering
from engine.compile.pipeline import CPU_FLOAT, PIPELINES
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import quants_with
from engine.compile.targets import measure
from engine.errors import CompileError
from tests.plain_bundle import ChainedSequence

FREE_QUANTS = quants_with(Activations.FLOAT32)
Build = Callable[..., tuple[Path, Manifest]]

# Largest KL (nats) that the rounding may cost on a random network of width 64, where nothing averages out.
BOUNDS = {Quant.FP32: 1e-9, Quant.INT8: 4e-3, Quant.INT4: 0.15, Quant.KEEP: 4e-3}


@pytest.mark.parametrize("quant", FREE_QUANTS)
@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_embedding_forms(quant: Quant, bits: int, tiny_checkpoint: Path, build: Build) -> None:
    """Each table with each layer form runs and stays near the reference."""
    _, manifest = build(tiny_checkpoint, quant=quant, embedding_bits=bits)
    loss = {32: 0.0, 16: 1e-6, 8: 2e-3, 4: 0.08}[bits]
    assert 0 <= manifest.parity["kl"] < BOUNDS[quant] + loss
    assert manifest.parity["top1"] > 0.5


@pytest.mark.parametrize(
    "options",
    [
        {"quant": Quant.INT4, "block": 128},
        {"quant": Quant.INT4, "asymmetric": True},
        {"quant": Quant.INT4, "head": Quant.INT8},
        {"quant": Quant.INT8, "head": Quant.INT4},
        {"quant": Quant.FP32, "head": Quant.INT8},
    ],
)
def test_layer_forms(options: dict[str, Any], tiny_checkpoint: Path, build: Build) -> None:
    """The head may be stored otherwise than the layers."""
    _, manifest = build(tiny_checkpoint, **options)
    assert manifest.parity["kl"] < BOUNDS[Quant.INT4]


@pytest.mark.parametrize("quant", [Quant.INT8, Quant.INT4])
def test_biases_survive_quantisation(quant: Quant, make_oracle: Callable[..., tuple[Any, Path]], build: Build) -> None:
    """Biases stay float; sizes that no block divides are padded."""
    _, source = make_oracle("Llama", attention_bias=True, mlp_bias=True, hidden_size=72, intermediate_size=100)
    _, manifest = build(source, quant=quant)
    assert manifest.parity["kl"] < BOUNDS[quant]


def test_plain_lowering_is_the_same_network(
    make_oracle: Callable[..., tuple[Any, Path]], build: Build, monkeypatch: pytest.MonkeyPatch, prompt: list[int]
) -> None:
    """Primitive operators only, also with a partial rotation: the form other targets will take."""
    parameters = {"rope_type": "default", "partial_rotary_factor": 0.5}
    _, source = make_oracle("Phi3", rope_parameters=parameters, pad_token_id=0)
    fused = ChainedSequence.start(*build(source, quant=Quant.FP32), None).extend(prompt)
    monkeypatch.setitem(PIPELINES, (False, Activations.FLOAT32), replace(CPU_FLOAT, lowering=PLAIN))
    folder, manifest = build(source, quant=Quant.FP32)
    plain = ChainedSequence.start(folder, manifest, None).extend(prompt)
    assert np.abs(plain - fused).max() < 1e-5 * np.abs(fused).max()
    operators = _operators(folder / manifest.graphs[0].file)
    assert not operators & {"RMSNormalization", "RotaryEmbedding", "QuickGelu"}


def test_half_precision_fixed_graphs(
    tiny_checkpoint: Path, build: Build, monkeypatch: pytest.MonkeyPatch, prompt: list[int]
) -> None:
    """The writer takes the activations' type and a fixed shape: fp16 masks, caches and logits."""
    exact = ChainedSequence.start(*build(tiny_checkpoint, quant=Quant.FP32), None).extend(prompt[:8])
    half = replace(CPU_FLOAT, lowering=PLAIN, dtype="float16", kv_dtype="float16")
    monkeypatch.setitem(PIPELINES, (False, Activations.FLOAT32), half)
    monkeypatch.setattr(measure, "FP32_ERROR_LIMIT", 0.05)
    folder, manifest = build(tiny_checkpoint, quant=Quant.FP32, rows=(8,), context=(32,))
    types = {tensor.dtype for graph in manifest.graphs for tensor in (*graph.inputs, *graph.outputs)}
    assert types == {"int32", "float16"} and manifest.kv_dtype == "float16"
    rounded = ChainedSequence.start(folder, manifest, StepShape(8, 24)).extend(prompt[:8])
    assert np.abs(rounded - exact).max() < 0.02 * np.abs(exact).max()


def test_no_cache_is_joined_and_no_row_depends_on_others(tiny_checkpoint: Path, build: Build) -> None:
    """By construction: nothing concatenates a cache, and no activation is quantised with one scale for all rows."""
    folder, manifest = build(tiny_checkpoint, quant=Quant.INT8)
    assert "DynamicQuantizeLinear" not in _operators(folder / manifest.graphs[0].file)
    model = _model(folder / manifest.graphs[0].file)
    for node in model.graph.node:
        if node.op_type == "Concat":
            assert not any(name.startswith("past_") for name in node.input)


@pytest.mark.parametrize("split", [Split.NONE, Split.LMHEAD, Split.LUT_LMHEAD])
def test_graphs_pass_the_onnx_checker(split: Split, tiny_checkpoint: Path, build: Build) -> None:
    """Standard operators are used by their definitions."""
    folder, manifest = build(tiny_checkpoint, quant=Quant.FP32, split=split)
    for graph in manifest.graphs:
        onnx.checker.check_model(str(folder / graph.file))


def test_a_wrong_float_bundle_fails(tiny_checkpoint: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage is a gate: a lowering that is wrong cannot produce an fp32 bundle."""
    monkeypatch.setattr(Lowering, "silu", lambda _, graph, x: graph.op("Sigmoid", [x]))
    monkeypatch.setitem(PIPELINES, (False, Activations.FLOAT32), replace(CPU_FLOAT, lowering=PLAIN))
    with pytest.raises(CompileError, match="differ from the checkpoint"):
        build(tiny_checkpoint, quant=Quant.FP32)


def test_onnxruntime_reads_the_folder_elsewhere(tiny_checkpoint: Path, build: Build, tmp_path: Path) -> None:
    """External data is found relative to the graph: a bundle can be moved."""
    folder, manifest = build(tiny_checkpoint)
    moved = folder.rename(tmp_path / "moved bundle")
    for graph in manifest.graphs:
        session = ort.InferenceSession(str(moved / graph.file), providers=["CPUExecutionProvider"])
        assert [value.name for value in session.get_inputs()] == [tensor.name for tensor in graph.inputs]


def _model(path: Path) -> Any:
    import onnx

    return onnx.load(path, load_external_data=False)


def _operators(path: Path) -> set[str]:
    return {node.op_type for node in _model(path).graph.node}
