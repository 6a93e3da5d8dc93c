"""Layers with windows, rotations, norms and caps of their own, as X Elite binaries in the HTP emulator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.bundle.manifest import Manifest
from engine.bundle.tensors import pool_window_slots
from engine.compile.arguments import QualityLevel, Quant, Target
from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.worker.assembly import assemble
from tests.engine.compile.check.test_families import CASES
from tests.engine.compile.check.test_pools import largest_error


@pytest.mark.parametrize(
    ("case", "quant", "apart"),
    [
        ("mistral-window", Quant.FP16, 0.01),
        ("mistral-window", Quant.W8A16, 0.15),
        ("gemma2", Quant.FP16, 0.02),
        ("gemma3", Quant.W8A16, 0.1),
        ("smollm3", Quant.FP16, 0.01),
        ("exaone4", Quant.W8A16, 0.15),
        ("granite", Quant.W8A16, 0.05),
        ("hunyuan-alpha", Quant.FP16, 0.01),
        ("hunyuan-alpha", Quant.W8A16, 0.1),
        ("olmo3-yarn", Quant.FP16, 0.01),
    ],
)
def test_logits_behind_a_window(
    case: str,
    quant: Quant,
    apart: float,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
) -> None:
    """Of 100 tokens where windows are of 16, against transformers. apart: largest error over the largest logit."""
    pytest.importorskip("onnxruntime_qnn")
    family, _, changes = CASES[case]
    model, source = make_oracle(family, **changes)
    shapes: dict[str, Any] = {"rows": (24,), "context": (136,), "parity_tokens": 64}
    folder, _ = build(source, quant=quant, target=Target.X_ELITE, quality=QualityLevel.FAST, **shapes)
    text = [(index * 37 + 11) % 300 for index in range(100)]
    assert largest_error(model, folder, text) < apart


def test_layers_with_a_window_have_fewer_columns(
    make_oracle: Callable[..., tuple[Any, Path]], build: Callable[..., tuple[Path, Manifest]]
) -> None:
    """Gemma 3's local layers keep 128 columns of 240: logits of 230 tokens, against transformers."""
    pytest.importorskip("onnxruntime_qnn")
    family, _, changes = CASES["gemma3"]
    model, source = make_oracle(family, **changes)
    shapes: dict[str, Any] = {"rows": (24,), "context": (264,), "parity_tokens": 64}
    folder, manifest = build(source, quant=Quant.W8A16, target=Target.X_ELITE, quality=QualityLevel.FAST, **shapes)
    assert pool_window_slots(manifest) == 128
    text = [(index * 37 + 11) % 300 for index in range(230)]
    assert largest_error(model, folder, text) < 0.1


def test_a_sequence_outlives_its_pool(
    make_oracle: Callable[..., tuple[Any, Path]], build: Callable[..., tuple[Path, Manifest]], prompt: list[int]
) -> None:
    """Mistral's layers see 16 columns: 150 tokens go through a pool of 112, each next to the best of transformers'."""
    pytest.importorskip("onnxruntime_qnn")
    family, _, changes = CASES["mistral-window"]
    model, source = make_oracle(family, **changes)
    shapes: dict[str, Any] = {"rows": (24,), "context": (136,), "parity_tokens": 64}
    folder, _ = build(source, quant=Quant.FP16, target=Target.X_ELITE, quality=QualityLevel.FAST, **shapes)
    served = assemble(EngineConfig(str(folder), threads=1))
    for name in ("a", "b"):
        request = Request(name, tuple(prompt), SamplingParams(max_tokens=110, temperature=0.0))
        served.loop.add(request, (), seed=1, now_s=0.0)
    found: dict[str, list[int]] = {"a": [], "b": []}
    while served.loop.scheduler.has_work:
        for event in served.loop.step().events:
            found[event.id] += event.token_ids
        assert list(served.loop.scheduler.violations()) == []
    served.runtime.close()
    assert len(found["a"]) == 110 and found["a"] == found["b"]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + found["a"]]), use_cache=False).logits[0, len(prompt) - 1 : -1].numpy()
    chosen = logits[np.arange(len(logits)), found["a"]]
    assert (logits.max(axis=-1) - chosen).max() / np.abs(logits).max() < 0.01
