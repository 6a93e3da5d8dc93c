"""The how-to page for families: its code is run as it stands, and what it lists is there."""

import json
import re
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
from engine.models import family
from engine.models.family import FAMILIES
from engine.models.vision import VISION
from tests.engine.compile.check.test_families import CASES

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/how-to/add-a-family.md").read_text(encoding="utf-8")
RENAMED = {"input_layernorm": "norm_1", "post_attention_layernorm": "norm_2"}


def test_the_page_adds_a_family(
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    prompt: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ministral of transformers under the names that the page's family has."""
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], names)
    monkeypatch.setattr(family, "FAMILIES", FAMILIES | {names["TOY"].architecture: names["TOY"]})
    kinds = ["sliding_attention", "full_attention"] * 2
    model, source = make_oracle("Ministral", sliding_window=16, num_hidden_layers=4, head_dim=16, layer_types=kinds)
    rename(source)
    folder, manifest = build(source, quant=Quant.FP32, layout=Layout.SEGMENTS)
    with torch.no_grad():
        expected = model(torch.tensor([prompt]), use_cache=False).logits[0].numpy()
    assert manifest.model.family == "toy" and manifest.model.layer_windows == (16, 0, 16, 0)
    measured = bundle_logits(folder, manifest, [prompt], rows=24)
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4


def rename(source: Path) -> None:
    """The checkpoint as the toy's."""
    weights = source / "model.safetensors"
    renamed = {re.sub("|".join(RENAMED), lambda m: RENAMED[m[0]], name): t for name, t in load_file(weights).items()}
    save_file(renamed, weights)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    del config["layer_types"]
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["ToyForCausalLM"]}), encoding="utf-8")


def test_the_page_lists_every_family_and_cases_that_exist() -> None:
    table = PAGE.partition("## Families and their tests")[2]
    texts = set(FAMILIES) - {each.architecture for each in VISION}
    assert set(re.findall(r"`(\w+(?:CausalLM|ConditionalGeneration))`", table)) == texts
    cases = re.findall(r"`(\w+)For\w+`", table.partition("Others:")[0])
    assert len(cases) > 30 and set(cases) <= {model for model, _, _ in CASES.values()}
    for file in re.findall(r"`(tests/[^`]+)`", PAGE):
        assert (ROOT / file).is_file()
