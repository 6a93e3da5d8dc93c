"""Which options a Whisper is compiled with, and which of its matrices --quant int4 stores with 4 bits."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from engine.bundle.manifest import load_manifest
from engine.bundle.specs import ModelTask
from engine.compile.arguments import CompileArguments, Layout, QualityLevel, Quant, Target
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.quantisation.methods.integer_blocks import int4_blocks
from engine.config import EngineConfig
from engine.errors import CompileError
from engine.request import Pooling, Request, SamplingParams
from engine.worker.assembly import assemble
from tests.tiny_whisper import PROMPT, features, network, run, write_ctranslate2, write_folder

BLOCK = 32


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("whisper") / "source")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quant": Quant.KEEP}, "for --target cpu takes --quant fp32, int8, int4, not keep"),
        ({"quant": Quant.INT4, "target": Target.X_ELITE}, "for --target x-elite takes --quant fp16, not int4"),
        ({"layout": Layout.SEGMENTS}, "--layout is not for models that write speech down"),
        ({"asymmetric": True}, "--asymmetric is not for models that write speech down"),
        ({"quality": QualityLevel.BEST}, "--quality best is not for models that write speech down"),
        ({"task": ModelTask.EMBED}, "--task embed is not what a Whisper is for: it takes --task transcribe"),
        ({"block": 64}, "--block must be one of"),
    ],
)
def test_options(source: Path, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=message):
        compile_bundle(CompileArguments(source, tmp_path / "bundle", **options), SilentProgress())
    assert not (tmp_path / "bundle").exists()


@pytest.fixture(scope="module")
def bundle(source: Path) -> Path:
    made = source.parent / "int4"
    compile_bundle(CompileArguments(source, made, quant=Quant.INT4), SilentProgress())
    return made


def test_parameters_are_counted_as_transformers_counts(bundle: Path, tmp_path: Path) -> None:
    """Also of CTranslate2's file, which has zeros for what no Whisper has."""
    other = write_ctranslate2(tmp_path / "source")
    compile_bundle(CompileArguments(other, tmp_path / "bundle", quant=Quant.INT8), SilentProgress())
    for folder in (bundle, tmp_path / "bundle"):
        assert load_manifest(folder).model.parameters == network().num_parameters()


def test_four_bits_are_of_the_layers_that_write(bundle: Path) -> None:
    layers = 2
    products = [node.op_type for node in onnx.load(bundle / "encoder.onnx", load_external_data=False).graph.node]
    assert products.count("MatMulIntegerToFloat") == 4 * layers + layers  # its own, and keys and values of the decoder
    assert "MatMulNBits" not in products
    assert _bits(bundle / "decoder.onnx") == [4] * 6 * layers + [8]  # the head comes last


def _bits(graph: Path) -> list[int]:
    nodes = onnx.load(graph, load_external_data=False).graph.node
    return [
        attribute.i
        for node in nodes
        if node.op_type == "MatMulNBits"
        for attribute in node.attribute
        if attribute.name == "bits"
    ]


def test_logits_are_those_of_rounded_weights(bundle: Path) -> None:
    """transformers with the same weights in blocks of 4 bits is nearer than with its own."""
    loop = assemble(EngineConfig(bundle=str(bundle), max_running=1)).loop
    asked = Request("a", PROMPT, SamplingParams(0), audio=features(2).tobytes(), pooling=Pooling())
    loop.add(asked, (), 0, 0.0)
    found = np.frombuffer(run(loop)["a"][0].vector, "<f4")
    own, rounded = network(), deepcopy(network())
    with torch.no_grad():
        for name, value in rounded.model.decoder.layers.named_parameters():
            if value.ndim == 2 and not name.endswith(("encoder_attn.k_proj.weight", "encoder_attn.v_proj.weight")):
                blocks = int4_blocks(value.numpy(), BLOCK, asymmetric=False)
                value.copy_(torch.tensor(blocks.floats()[:, : value.shape[1]]))
    far, near = (np.abs(found - _logits(each)).max() for each in (own, rounded))
    assert near < far / 3


def _logits(model: Any) -> Any:
    with torch.no_grad():
        said = model(input_features=torch.tensor(features(2)[None]), decoder_input_ids=torch.tensor([PROMPT]))
    return said.logits[0, -1].numpy()
