"""FP8 of tiles of 128 x 128: read as floats, the last tiles of a matrix being smaller."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Layout, Quant, Target, default_quant
from engine.compile.check.parity import bundle_logits
from tests.engine.compile.sources.quantised.formats import Tensors, written

TILE = 128
CONFIG = {"quant_method": "fp8", "weight_block_size": [TILE, TILE], "activation_scheme": "dynamic", "fmt": "e4m3"}


def in_tiles(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """As DeepSeek writes them; the last tiles are not full."""
    outputs, inputs = weight.shape
    rows, columns = torch.arange(outputs) // TILE, torch.arange(inputs) // TILE
    scales = torch.zeros(int(rows[-1]) + 1, int(columns[-1]) + 1)
    for row in range(len(scales)):
        for column in range(scales.shape[1]):
            scales[row, column] = weight[rows == row][:, columns == column].abs().max() / 448
    spread = scales[rows][:, columns]
    codes = (weight / spread).to(torch.float8_e4m3fn)
    return {f"{name}.weight": codes, f"{name}.weight_scale_inv": scales}, codes.float() * spread


def test_tiles_of_8_bit_floats(
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    tmp_path: Path,
    prompt: list[int],
) -> None:
    """Read as the floats they mean, which no operator of the CPU holds: the default rounds them as any others."""
    model, source = make_oracle("Qwen3", hidden_size=192, intermediate_size=320, num_hidden_layers=1, head_dim=48)
    model.load_state_dict(written(source, tmp_path / "codes", CONFIG, in_tiles), strict=False)
    with torch.no_grad():
        expected = model(torch.tensor([prompt]), use_cache=False).logits[0].numpy()
    folder, manifest = build(tmp_path / "codes", quant=Quant.FP32, layout=Layout.SEGMENTS)
    measured = bundle_logits(folder, manifest, [prompt], rows=24)
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4
    assert default_quant(Target.CPU, tmp_path / "codes") is Quant.INT8
