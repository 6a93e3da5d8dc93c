"""Adapters that PEFT 0.21.2 wrote (`write_with_peft.py`): its tokens and logits, and its refused kinds by name."""

import json
from pathlib import Path

import numpy as np
import pytest

from engine.adapters.adapter import read_adapter
from engine.bundle.manifest import load_manifest
from engine.errors import BundleError
from tests.bundles import Bundles
from tests.engine.runtime.test_onnx_lora import LORA, open_lora, part
from tests.engine.runtime.test_onnx_segments import PROMPT, run

WRITTEN = Path(__file__).parent / "written_by_peft"
SUPPORTED = ("plain", "rslora", "patterns")


def test_the_tokens_and_logits_that_peft_computes_all_in_the_same_steps(bundles: Bundles) -> None:
    """Three prompts, one for each adapter, then 23 steps of three decodes."""
    expected = {name: json.loads((WRITTEN / name / "expected.json").read_text()) for name in SUPPORTED}
    runtime = open_lora(bundles(LORA), {name: WRITTEN / name for name in SUPPORTED})
    pages = {name: tuple(range(4 * i, 4 * i + 4)) for i, name in enumerate(SUPPORTED)}
    texts, logits = {name: list(PROMPT) for name in SUPPORTED}, np.zeros(0)
    for start, end in ((0, 20), (20, 40), *((40 + i, 41 + i) for i in range(23))):
        logits = run(runtime, *(part(name, tuple(texts[name][start:end]), start, pages[name]) for name in SUPPORTED))
        if end >= len(PROMPT):
            for name, row in zip(SUPPORTED, logits, strict=True):
                texts[name].append(int(row.argmax()))
    assert {name: texts[name][len(PROMPT) :] for name in SUPPORTED} == {
        name: expected[name]["tokens"] for name in SUPPORTED
    }
    for name, row in zip(SUPPORTED, logits, strict=True):
        np.testing.assert_allclose(row, expected[name]["last_logits"], atol=1e-4 * np.abs(row).max())


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("dora", "adapter_config.json: use_dora = True is not supported"),
        ("bias", "adapter_config.json: bias = 'lora_only' is not supported"),
        ("saved", r"adapter_config.json: modules_to_save = \['norm'\] is not supported"),
        ("head", "tensor 'base_model.model.lm_head.lora_A.weight' changes nothing"),
        ("embedding", "tensor 'base_model.model.model.embed_tokens.lora_embedding_A' changes nothing"),
    ],
)
def test_what_is_not_supported_is_named(bundles: Bundles, name: str, told: str) -> None:
    with pytest.raises(BundleError, match=told):
        read_adapter(name, WRITTEN / name, load_manifest(bundles(LORA)))
