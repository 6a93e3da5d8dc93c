"""Codes written by the libraries that define the formats, beside the floats that they make of them."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Layout, Quant
from engine.compile.check.parity import bundle_logits
from tests.engine.compile.sources.quantised.formats import LINEAR, written
from tests.engine.compile.sources.quantised.test_logits import in_own_order, stored_tensors

HERE = Path(__file__).parent / "libraries"
PLACE = Path(__file__).parents[6] / ".venv" / "libraries"
PACKED = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
INTEGERS = PACKED | {"format": "int-quantized"}
FLOATS = PACKED | {"format": "float-quantized"}
GPTQ = {"quant_method": "gptq", "bits": 4}
FOUR_BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}
CASES: dict[str, dict[str, Any]] = {
    "packed-4": PACKED,
    "packed-4-asymmetric": PACKED,
    "packed-4-channel": PACKED,
    "packed-8": PACKED,
    "int-8-channel": INTEGERS,
    "int-8-group": INTEGERS,
    "int-8-asymmetric": INTEGERS,
    "float-8-channel": FLOATS,
    "float-8-tensor": FLOATS | {"format": "naive-quantized"},
    "float-8-block": FLOATS,
    "float-4-nv": PACKED | {"format": "nvfp4-pack-quantized"},
    "float-4-mx": PACKED | {"format": "mxfp4-pack-quantized"},
    "gptq-4": GPTQ,
    "gptq-4-mixed": GPTQ | {"desc_act": True},
    "gptq-8": GPTQ | {"bits": 8},
    "gptq-8-mixed": GPTQ | {"bits": 8, "desc_act": True},
    "awq": {"quant_method": "awq", "bits": 4, "version": "gemm"},
    "tiles-8": {"quant_method": "fp8", "weight_block_size": [64, 64]},
    "nf4": FOUR_BITS,
    "nf4-nested": FOUR_BITS,
    "fp4": FOUR_BITS,
    "int8": {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True},
}
READ_AS_FLOATS = ("float-8", "tiles", "nf4", "fp4")  # which no operator holds
FOUR_BIT_INTEGERS = ("packed-4", "gptq-4", "awq")
HALF_PRECISION = ("float-4-nv",)  # the library gives its floats in bfloat16


@pytest.fixture(scope="module")
def libraries() -> Path:
    """The folder of the packages, without what they require: torch and transformers are here."""
    wanted = HERE / "requirements.txt"
    folder = PLACE / hashlib.sha256(wanted.read_bytes()).hexdigest()[:12]
    if not folder.exists():
        draft = folder.with_name(f"{folder.name}.{os.getpid()}")
        options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--target", str(draft)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, "-r", str(wanted)], check=True)
        draft.rename(folder)
    return folder


@pytest.fixture(scope="module")
def rounded(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """rounded(checkpoint) is a folder with what each case makes of its matrices. Every test's are the same, and one
    process makes it of all: to import the libraries takes longer than to use them."""
    folder = tmp_path_factory.mktemp("rounded")

    def make(source: Path) -> Path:
        given = folder / "given.safetensors"
        if not given.exists():
            tensors = load_file(source / "model.safetensors")
            save_file({name: each for name, each in tensors.items() if name.endswith(LINEAR)}, given)
            command = [sys.executable, str(HERE / "rounding.py"), str(given), str(folder), *CASES]
            subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(libraries)})
        return folder

    return make


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_floats_that_the_library_makes(
    case: str,
    rounded: Callable[[Path], Path],
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    tmp_path: Path,
    prompt: list[int],
) -> None:
    model, source = make_oracle("Llama", hidden_size=128, intermediate_size=192, num_hidden_layers=1)
    codes, floats = (load_file(rounded(source) / f"{case}.{name}") for name in ("stored", "meant"))

    def store(module: str, _: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return {name: each for name, each in codes.items() if name.startswith(f"{module}.")}, floats[f"{module}.weight"]

    model.load_state_dict(written(source, tmp_path / "codes", CASES[case], store), strict=False)
    with torch.no_grad():
        expected = model(torch.tensor([prompt]), use_cache=False).logits[0].numpy()
    folder, manifest = build(tmp_path / "codes", quant=Quant.FP32, layout=Layout.SEGMENTS)
    measured = bundle_logits(folder, manifest, [prompt], rows=24)
    bound = 0.02 if case in HALF_PRECISION else 1e-4
    assert np.abs(measured - expected).max() / np.abs(expected).max() < bound
    folder, kept = build(tmp_path / "codes", quant=Quant.KEEP, layout=Layout.SEGMENTS)
    assert kept.parity["kl"] < 0.02
    if case.startswith(READ_AS_FLOATS):
        return
    tensors = stored_tensors(folder)
    for name, module in (("output", "self_attn.o_proj"), ("down", "mlp.down_proj")):
        bits = 4 if case.startswith(FOUR_BIT_INTEGERS) else 8
        codes_of, scales, zeros = in_own_order(tensors, f"layer_0_{name}", bits)
        theirs = floats[f"model.layers.0.{module}.weight"].numpy()
        ours = (codes_of.astype(np.float32) - zeros) * scales
        assert np.allclose(ours, theirs, rtol=0.01 if case in HALF_PRECISION else 1e-6, atol=1e-7), name
