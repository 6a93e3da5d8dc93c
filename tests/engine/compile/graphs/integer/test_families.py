"""Other families' layers as integer graphs: biases, partial rotation, untied heads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bundle.manifest import Manifest
from engine.bundle.variant import StepShape
from engine.compile.arguments import Quant
from engine.compile.check.parity import compare_logits
from tests.plain_bundle import ChainedSequence

FAMILIES: dict[str, dict[str, object]] = {
    "Qwen2": {},
    "Llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "Phi3": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_integers_follow_transformers(
    family: str,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    prompt: list[int],
) -> None:
    import torch

    model, source = make_oracle(family, **FAMILIES[family])
    folder, manifest = build(source, quant=Quant.W8A16, rows=(32,), same_past=(64,))
    found = ChainedSequence.start(folder, manifest, StepShape(32, 64)).extend(prompt[:32])
    with torch.no_grad():
        expected = model(torch.tensor([prompt[:32]])).logits[0].numpy()
    parity = compare_logits(expected.astype(np.float32), found)
    assert parity.kl.value < 0.02
    assert parity.top1.value >= 0.8
