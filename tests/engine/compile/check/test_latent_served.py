"""Latent attention, and scores that grow with the position, as served: prompts in pieces, decodes, a known prefix."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.bundle.manifest import Manifest
from engine.compile.arguments import KvType, Layout, Quant
from engine.compile.check.parity import bundle_logits
from engine.config import EngineConfig
from engine.worker.assembly import assemble
from tests.engine.compile.check.test_families import CASES, DEEPSEEK
from tests.engine.compile.check.test_windows_served import answer

Build = Callable[..., tuple[Path, Manifest]]


TOKENS = 60  # well past what the rotary tables were made for
FAMILIES = {"DeepseekV2": DEEPSEEK, "Ministral3": CASES["ministral3"][2]}


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_transformers(
    family: str, make_oracle: Callable[..., tuple[Any, Path]], build: Build, prompt: list[int]
) -> None:
    model, source = make_oracle(family, **FAMILIES[family])
    folder, _ = build(source, quant=Quant.FP32, layout=Layout.SEGMENTS, kv=KvType.FLOAT32)
    served = assemble(EngineConfig(str(folder), threads=1, max_rows=24, spin="off"))
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
    for name in ("a", "b"):
        assert answer(served, name, prompt, count=TOKENS) == expected[0, len(prompt) :].tolist()
    assert served.loop.scheduler.counters.prefix_hits == 32


def test_caches_of_8_bits(make_oracle: Callable[..., tuple[Any, Path]], build: Build, prompt: list[int]) -> None:
    """Values are filled up with zeros there, and weights have 8 bits as well."""
    model, source = make_oracle("DeepseekV2", **DEEPSEEK)
    folder, manifest = build(source, quant=Quant.INT8, layout=Layout.SEGMENTS, kv=KvType.INT8)
    with torch.no_grad():
        expected = model(torch.tensor([prompt]), use_cache=False).logits[0].numpy()
    measured = bundle_logits(folder, manifest, [prompt], rows=24)
    assert manifest.kv_dtype == "int8"
    assert np.abs(measured - expected).mean() / np.abs(expected).mean() < 0.05
