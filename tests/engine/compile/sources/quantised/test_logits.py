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
from engine.compile.quantisation.choose.matrices import codes_told
from engine.compile.sources.checkpoint import SafetensorsCheckpoint, read_json
from engine.compile.sources.quantised.checkpoint import QuantisedCheckpoint
from engine.models.family import read_network
from engine.models.stored_codes import CodeFormat, StoredCodes
from tests.engine.compile.sources.quantised.formats import Tensors, awq, gptq, rounded, written

Build = Callable[..., tuple[Path, Manifest]]
Oracle = Callable[..., tuple[Any, Path]]
Store = Callable[[str, torch.Tensor], tuple[Tensors, Any]]
SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "head_dim": 32}


def packed_by_gptq(bits: int, group: int, less: int, is_symmetric: bool, is_mixed: bool = False) -> Store:
    def store(name: str, weight: torch.Tensor) -> tuple[Tensors, Any]:
        codes = rounded(weight, bits, group, is_symmetric, is_mixed)
        return gptq(name, codes, bits, less), codes.floats()

    return store


def packed_by_awq(group: int) -> Store:
    def store(name: str, weight: torch.Tensor) -> tuple[Tensors, Any]:
        codes = rounded(weight, 4, group, is_symmetric=False)
        return awq(name, codes), codes.floats()

    return store


GPTQ = {"quant_method": "gptq", "bits": 4}
V2 = GPTQ | {"checkpoint_format": "gptq_v2"}
CASES: dict[str, tuple[dict[str, Any], Store]] = {
    "gptq-sym": (GPTQ, packed_by_gptq(4, 64, 1, is_symmetric=True)),
    "gptq-asym": (GPTQ, packed_by_gptq(4, 64, 1, is_symmetric=False)),
    "gptq-v2": (V2, packed_by_gptq(4, 32, 0, is_symmetric=False)),
    "gptq-whole-rows": (GPTQ, packed_by_gptq(4, -1, 1, is_symmetric=True)),
    "gptq-act-order": (GPTQ | {"desc_act": True}, packed_by_gptq(4, 64, 1, is_symmetric=True, is_mixed=True)),
    "gptq-act-order-asym": (V2 | {"desc_act": True}, packed_by_gptq(4, 32, 0, is_symmetric=False, is_mixed=True)),
    "gptq-8": (GPTQ | {"bits": 8}, packed_by_gptq(8, 64, 1, is_symmetric=True)),
    "gptq-8-asym": (GPTQ | {"bits": 8}, packed_by_gptq(8, 64, 1, is_symmetric=False)),
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, packed_by_awq(64)),
}


# Qwen2 has biases, which no format packs.
@pytest.mark.parametrize(
    ("family", "case"), [*(("Llama", case) for case in CASES), ("Qwen2", "gptq-asym"), ("Qwen2", "awq")]
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
    config, store = CASES[case]
    model, source = make_oracle(family, **SIZES)
    meant = written(source, tmp_path / "codes", config, store)
    model.load_state_dict(meant, strict=False)
    with torch.no_grad():
        expected = model(torch.tensor([prompt]), use_cache=False).logits[0].numpy()
    folder, manifest = build(tmp_path / "codes", quant=Quant.FP32, layout=Layout.SEGMENTS)
    measured = bundle_logits(folder, manifest, [prompt], rows=24)
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4
    _, kept = build(tmp_path / "codes", quant=Quant.KEEP, layout=Layout.SEGMENTS)
    assert kept.parity["kl"] < 0.02
    assert default_quant(Target.CPU, tmp_path / "codes") is Quant.KEEP


def test_the_log_says_what_becomes_of_codes(make_oracle: Oracle, build: Build, tmp_path: Path) -> None:
    """Groups of 8 inputs are too small for the operator, and a stack of two forms has none."""
    _, source = make_oracle("Llama", **SIZES)

    def store(name: str, weight: torch.Tensor) -> tuple[Tensors, Any]:
        is_small = name.endswith(("0.mlp.down_proj", "1.self_attn.v_proj"))
        return packed_by_gptq(4, 8 if is_small else 64, 1, is_symmetric=True)(name, weight)

    written(source, tmp_path / "codes", GPTQ, store)
    with SafetensorsCheckpoint(tmp_path / "codes") as file:
        checkpoint = QuantisedCheckpoint(file, StoredCodes(CodeFormat.GPTQ, 4, True))
        network = read_network(read_json(tmp_path / "codes" / "config.json"))
        arguments = CompileArguments(tmp_path, tmp_path, quant=Quant.KEEP)
        assert codes_told("gptq", checkpoint, network, arguments) == (
            "weights come as gptq: 6 of 8 matrices keep their codes; "
            "the others are rounded to 8 bits from the floats they mean"
        )
    _, kept = build(tmp_path / "codes", quant=Quant.KEEP, layout=Layout.SEGMENTS)
    assert kept.parity["kl"] < 0.02
