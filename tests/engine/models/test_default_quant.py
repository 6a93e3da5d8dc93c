"""The method for a folder on a machine of a certain memory."""

import json
from pathlib import Path

import pytest

from engine.models.default_quant import checkpoint_quant


@pytest.mark.parametrize(
    ("architecture", "in_much", "in_little"),
    [
        ("WhisperForConditionalGeneration", "int8", "int8"),
        ("BertModel", "fp32", "fp32"),
        ("Qwen3ForCausalLM", "int8", "int4"),
    ],
)
def test_only_what_generates_has_four_bits(architecture: str, in_much: str, in_little: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert checkpoint_quant(tmp_path, 1000) == in_much
    assert checkpoint_quant(tmp_path, 100) == in_little
