"""Codes that were chosen for w4a16 stand in the integer graphs bit for bit."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from engine.compile.arguments import CompileArguments, QualityLevel, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.quantisation.choose.choose import CodesFolder
from engine.compile.quantisation.rounding.codes import BlockCodes

PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def test_integer_graphs_hold_the_chosen_codes(
    tiny_checkpoint: Path, short_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: dict[str, list[BlockCodes]] = defaultdict(list)
    append = CodesFolder.append

    def note(folder: CodesFolder, name: str, codes: BlockCodes) -> None:
        noted[name].append(codes)
        append(folder, name, codes)

    monkeypatch.setattr(CodesFolder, "append", note)
    arguments = CompileArguments(
        tiny_checkpoint,
        tmp_path / "bundle",
        quant=Quant.W4A16,
        quality=QualityLevel.GOOD,
        calibration=short_text,
        rows=(32,),
        context=(128,),
        parity_tokens=4,
    )
    manifest = compile_bundle(arguments, SilentProgress())
    layers = next(graph for graph in manifest.graphs if graph.first_layer is not None)
    model = onnx.load(arguments.output / layers.file)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for layer in range(manifest.model.layers):
        for part, modules in PARTS.items():
            names = [f"model.layers.{layer}.{module}.weight" for module in modules]
            weight = stored[f"layer_{layer}_{part}_weight"]
            codes = [np.concatenate([run.integers() for run in noted[name]]) for name in names]
            scales = [np.concatenate([run.grid.scales for run in noted[name]]) for name in names]
            bits = {run.bits for name in names for run in noted[name]}
            assert {4: onnx.TensorProto.INT4, 8: onnx.TensorProto.INT8}[bits.pop()] == weight.data_type
            assert not bits
            found = numpy_helper.to_array(weight).astype(np.int8)
            assert np.array_equal(found, np.concatenate(codes).T)
            stored_scales = numpy_helper.to_array(stored[f"layer_{layer}_{part}_scales"])
            ratio = stored_scales.reshape(-1, found.shape[1]) / np.concatenate(scales).T
            # The attention scale is the only factor there may be, and it is the same for all of an output.
            np.testing.assert_allclose(ratio, np.broadcast_to(ratio[0], ratio.shape), rtol=1e-6)
            assert part == "qkv" or np.array_equal(ratio, np.ones_like(ratio))
