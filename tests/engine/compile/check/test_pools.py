"""Families whose layers see windows or turn in two ways, in graphs over one pool, against transformers."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Layout, Quant
from engine.evaluation.models import open_bundle
from tests.engine.compile.check.test_families import CASES

FAMILIES = ("mistral-window", "ministral", "qwen2-window", "smollm3", "olmo3", "exaone4", "gemma3", "gemma2")
SHAPES: dict[str, dict[str, Any]] = {"free": {}, "fixed": {"rows": (24,), "context": (136,)}}


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("case", FAMILIES)
def test_logits_in_steps(
    case: str,
    shapes: str,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    prompt: list[int],
) -> None:
    """Of a text far longer than the windows of 16, in steps of which most are longer than a window."""
    family, _, changes = CASES[case]
    model, source = make_oracle(family, **changes)
    folder, _ = build(source, quant=Quant.FP32, layout=Layout.POOL, **SHAPES[shapes])
    text = (prompt * 100)[:100]
    with torch.no_grad():
        expected = model(torch.tensor([text]), use_cache=False).logits[0].numpy()
    with ExitStack() as stack:
        measured = open_bundle(case, folder, None, stack).logits(text)
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4
