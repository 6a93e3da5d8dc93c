"""Experts that come as codes: Qwen3-MoE as AWQ, GPTQ and FP8."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from engine.bundle.manifest import Manifest
from engine.compile.arguments import CompileArguments, Layout, Quant, Target, default_quant
from engine.compile.check.parity import bundle_logits
from engine.compile.quantisation.choose.matrices import codes_told
from engine.compile.sources.experts import ExpertTensors
from engine.compile.sources.source import open_source
from engine.models.family import read_network
from tests.engine.compile.sources.quantised.formats import PACKINGS, Tensors, written
from tests.engine.compile.sources.quantised.test_float8 import CONFIG, in_tiles

Build = Callable[..., tuple[Path, Manifest]]
Oracle = Callable[..., tuple[Any, Path]]
SIZES = {
    "hidden_size": 128,
    "moe_intermediate_size": 192,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "mlp_only_layers": [1],
    "intermediate_size": 192,
    "head_dim": 32,
}
# Of a layer with experts 2 + 2 * 4 stacks of matrices, of the other 4.
KEPT = {
    "awq": "weights come as awq: 14 of 14 matrices keep their codes",
    "gptq-sym": "weights come as gptq: 14 of 14 matrices keep their codes",
    "gptq-8": "weights come as gptq: 14 of 14 matrices keep their codes",
    "gptq-whole-rows": "weights come as gptq: 14 of 14 matrices keep their codes",
    "packed-4": "weights come as compressed-tensors: 14 of 14 matrices keep their codes",
    "gptq-8-asym": "weights come as gptq: 14 of 14 matrices keep their codes",
    "gptq-act-order": (
        "weights come as gptq: 10 of 14 matrices keep their codes; "
        "the others are rounded to 8 bits from the floats they mean"
    ),
}
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
NVFP4 = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}


def nvfp4(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Low nibble first; 16 inputs share a scale of 8 bits, which is divided by a number for all."""
    values, blocks = torch.cat((E2M1, -E2M1)), weight.reshape(len(weight), -1, 16)
    common = float(448 * 6 / weight.abs().max())
    scales = (blocks.abs().amax(dim=2) / 6 * common).to(torch.float8_e4m3fn)
    steps = (scales.float() / common)[:, :, None]
    codes = ((blocks / steps)[..., None] - values).abs().argmin(dim=3).to(torch.uint8)
    packed = (codes[..., 0::2] | (codes[..., 1::2] << 4)).reshape(len(weight), -1)
    stored = {"packed": packed, "scale": scales, "global_scale": torch.tensor([common])}
    meant = (values[codes.long()] * steps).reshape(weight.shape)
    return {f"{name}.weight_{part}": tensor for part, tensor in stored.items()}, meant


def oracle(make_oracle: Oracle, target: Path, config: Any, store: Callable[..., tuple[Tensors, Any]]) -> Any:
    """The model with the floats that the codes of the folder `target` mean."""
    model, source = make_oracle("Qwen3Moe", **SIZES)
    save_file(written(source, target, config, store), source / "model.safetensors", {"format": "pt"})
    return type(model).from_pretrained(source, dtype=torch.float32).eval()


def logits(model: Any, prompt: list[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([prompt]), use_cache=False).logits[0].numpy()


@pytest.mark.parametrize("case", KEPT)
def test_codes_of_experts(case: str, make_oracle: Oracle, build: Build, tmp_path: Path, prompt: list[int]) -> None:
    """In floats transformers' logits; kept, what the log says."""
    packing, source = PACKINGS[case], tmp_path / "codes"
    model = oracle(make_oracle, source, packing.config, packing.store)
    expected = logits(model, prompt)
    measured = bundle_logits(*build(source, quant=Quant.FP32, layout=Layout.SEGMENTS), [prompt], rows=24)
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4
    assert default_quant(Target.CPU, source) is Quant.KEEP
    found = open_source(source)
    network = read_network(found.config)
    with found.tensors() as tensors:
        arguments = CompileArguments(source, tmp_path / "bundle", quant=Quant.KEEP)
        assert codes_told(packing.config["quant_method"], tensors, network, arguments) == KEPT[case]
        experts = ExpertTensors(tensors, network, 0)
        for expert in range(SIZES["num_experts"]):
            pieces = (*experts.kept_gate_up(expert), experts.kept_down(expert))
            floats = (*experts.gate_up(expert), experts.down(expert))
            form = tensors.form(f"model.layers.0.mlp.experts.{expert}.down_proj.weight")
            assert form is not None and bool(form.order) == packing.is_mixed
            order = np.arange(SIZES["moe_intermediate_size"]) if form.places() is None else form.places()
            for piece, values, place in zip(pieces, floats, (order, order, (slice(None), order)), strict=True):
                kept = piece if isinstance(piece, np.ndarray) else piece.floats()
                assert np.array_equal(kept, values[place])
            assert [isinstance(piece, np.ndarray) for piece in pieces] == [packing.is_mixed, packing.is_mixed, False]
    _, manifest = build(source, quant=Quant.KEEP, layout=Layout.SEGMENTS)
    assert (manifest.parity["kl"] < 0.02, manifest.codes) == (True, KEPT[case])


def check_all_codes_stay(source: Path, expected: NDArray[np.float32], build: Build, prompt: list[int]) -> None:
    """Floats of the codes give what transformers gives, and all matrices keep theirs. expected: logits of `prompt`."""
    measured = bundle_logits(*build(source, quant=Quant.FP32, layout=Layout.SEGMENTS), [prompt], rows=24)
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4
    _, manifest = build(source, quant=Quant.KEEP, layout=Layout.SEGMENTS)
    assert manifest.codes == "weights come as compressed-tensors: 14 of 14 matrices keep their codes"
    assert manifest.parity["kl"] < 0.02


@pytest.mark.parametrize("group", [64, 16])
def test_downs_of_more_bits(group: int, make_oracle: Oracle, build: Build, tmp_path: Path, prompt: list[int]) -> None:
    """The operator knows one width: codes of 4 bits become 8 of the same value."""
    four, eight, source = replace(PACKINGS["packed-4"], group=group), PACKINGS["packed-8-sym"], tmp_path / "codes"

    def store(name: str, weight: torch.Tensor) -> tuple[Tensors, Any]:
        return (eight if "experts" in name and name.endswith("down_proj") else four).store(name, weight)

    check_all_codes_stay(source, logits(oracle(make_oracle, source, four.config, store), prompt), build, prompt)


def test_4_bit_floats_of_experts(make_oracle: Oracle, build: Build, tmp_path: Path, prompt: list[int]) -> None:
    """NVFP4: 8-bit codes of the very same values, in blocks of 16; activations alone are rounded."""
    source = tmp_path / "codes"
    check_all_codes_stay(source, logits(oracle(make_oracle, source, NVFP4, nvfp4), prompt), build, prompt)


def test_8_bit_floats_of_experts(make_oracle: Oracle, build: Build, tmp_path: Path, prompt: list[int]) -> None:
    """Read as the floats they mean, and rounded as any others."""
    source = tmp_path / "codes"
    expected = logits(oracle(make_oracle, source, CONFIG, in_tiles), prompt)
    measured = bundle_logits(*build(source, quant=Quant.FP32, layout=Layout.SEGMENTS), [prompt], rows=24)
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4
    assert default_quant(Target.CPU, source) is Quant.INT8
    _, manifest = build(source, quant=Quant.INT8, layout=Layout.SEGMENTS)
    assert manifest.parity["kl"] < 0.02
    assert manifest.codes == "weights come as fp8: they are read as the floats they mean and stored as int8"
