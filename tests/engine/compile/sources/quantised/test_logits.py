"""Codes of a checkpoint in the bundle: the same codes and scales, and the logits of the floats that they mean."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.bundle.manifest import Manifest
from engine.compile.arguments import CompileArguments, Layout, Quant, Target, default_quant
from engine.compile.check.parity import bundle_logits
from engine.compile.pipeline import compile_bundle
from tests.engine.compile.graphs.segments.stored_weights import stored
from tests.engine.compile.quantisation.choose.test_quality import Notes
from tests.engine.compile.sources.quantised.formats import PACKINGS, Tensors, packed_by_gptq, written

Build = Callable[..., tuple[Path, Manifest]]
Oracle = Callable[..., tuple[Any, Path]]
STACKS = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "output": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "head_dim": 32}


# Qwen2 has biases, which no format packs.
@pytest.mark.parametrize(
    ("family", "case"), [*(("Llama", case) for case in PACKINGS), ("Qwen2", "gptq-asym"), ("Qwen2", "awq")]
)
def test_logits_are_those_of_the_floats_that_codes_mean(
    case: str,
    family: str,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Build,
    tmp_path: Path,
    prompt: list[int],
) -> None:
    """In float as near as floats are; kept, only activations are rounded."""
    model, source = make_oracle(family, **SIZES)
    meant = written(source, tmp_path / "codes", PACKINGS[case].config, PACKINGS[case].store)
    model.load_state_dict(meant, strict=False)
    with torch.no_grad():
        expected = model(torch.tensor([prompt]), use_cache=False).logits[0].numpy()
    folder, manifest = build(tmp_path / "codes", quant=Quant.FP32, layout=Layout.SEGMENTS)
    measured = bundle_logits(folder, manifest, [prompt], rows=24)
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4
    _, kept = build(tmp_path / "codes", quant=Quant.KEEP, layout=Layout.SEGMENTS)
    assert kept.parity["kl"] < 0.02
    assert default_quant(Target.CPU, tmp_path / "codes") is Quant.KEEP


@pytest.mark.parametrize("case", PACKINGS)
def test_codes_scales_and_zero_points_stay(case: str, make_oracle: Oracle, build: Build, tmp_path: Path) -> None:
    """To the bit, in every matrix of a layer; queries carry the scale of attention in their scales."""
    packing, found = PACKINGS[case], {}
    _, source = make_oracle("Llama", **SIZES | {"num_hidden_layers": 1})

    def store(name: str, weight: torch.Tensor) -> tuple[Tensors, Any]:
        found[name.rpartition(".")[2]] = packing.codes(weight)
        return packing.store(name, weight)

    written(source, tmp_path / "codes", packing.config, store)
    folder, _ = build(tmp_path / "codes", quant=Quant.KEEP, layout=Layout.SEGMENTS)
    tensors = stored_tensors(folder)
    for name, modules in STACKS.items():
        parts = [found[module] for module in modules]
        scales = [part.scales[:, part.groups] for part in parts]
        if name == "qkv":
            scales[0] = scales[0] * np.float32(SIZES["head_dim"] ** -0.5)
        wanted = (
            torch.cat([part.codes for part in parts]),
            torch.cat(scales),
            torch.cat([part.zeros[:, part.groups] for part in parts]),
        )
        for ours, theirs in zip(in_own_order(tensors, f"layer_0_{name}", packing.bits), wanted, strict=True):
            assert np.array_equal(ours, theirs.numpy()), name


def stored_tensors(folder: Path) -> dict[str, Any]:
    """Of all layers of a bundle."""
    found: dict[str, Any] = {}
    for path in folder.glob("linear_*.onnx"):
        found |= stored(path)
    return found


def in_own_order(tensors: dict[str, Any], name: str, bits: int) -> tuple[Any, Any, Any]:
    """Codes, scales and zero points of each input [outputs, inputs], from the operator's definition."""
    packed, scales = tensors[f"{name}_weight"], tensors[f"{name}_scales"]
    outputs, blocks, width = packed.shape
    inputs = SIZES["intermediate_size"] if name.endswith("down") else SIZES["hidden_size"]
    points = tensors.get(f"{name}_zeros", np.full((outputs, blocks), 8 if bits == 4 else 128))
    if bits == 4:
        packed, width = np.stack((packed & 15, packed >> 4), axis=-1), 2 * width
        if f"{name}_zeros" in tensors:
            points = np.stack((points & 15, points >> 4), axis=-1).reshape(outputs, -1)[:, :blocks]
    places = tensors.get(f"{name}_order", np.arange(inputs))
    given = (packed.reshape(outputs, -1), np.repeat(scales, width, axis=1), np.repeat(points, width, axis=1))
    found = tuple(np.empty((outputs, inputs), values.dtype) for values in given)
    for own, values in zip(found, given, strict=True):
        own[:, places] = values[:, :inputs]
    return found


def test_the_log_says_what_becomes_of_codes(make_oracle: Oracle, tmp_path: Path) -> None:
    """Groups of 8 inputs are too small for the operator, and a stack of two forms has none."""
    _, source = make_oracle("Llama", **SIZES)

    def store(name: str, weight: torch.Tensor) -> tuple[Tensors, Any]:
        is_small = name.endswith(("0.mlp.down_proj", "1.self_attn.v_proj"))
        return packed_by_gptq(4, 8 if is_small else 64, True).store(name, weight)

    written(source, tmp_path / "codes", PACKINGS["gptq-sym"].config, store)
    notes = Notes()
    kept = compile_bundle(CompileArguments(tmp_path / "codes", tmp_path / "bundle", quant=Quant.KEEP), notes)
    assert kept.parity["kl"] < 0.02
    assert kept.codes in notes.texts and kept.codes == (
        "weights come as gptq: 6 of 8 matrices keep their codes; "
        "the others are rounded to 8 bits from the floats they mean"
    )
