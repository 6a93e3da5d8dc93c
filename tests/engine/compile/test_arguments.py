"""What is compiled when an option is left out."""

import json
from pathlib import Path

import pytest

from engine.compile.arguments import Quant, Target, default_quant


@pytest.mark.parametrize(
    ("architecture", "quant"),
    [("WhisperForConditionalGeneration", Quant.FP16), ("BertModel", Quant.FP16), ("Qwen3ForCausalLM", Quant.W4)],
)
def test_weights_for_an_npu(architecture: str, quant: Quant, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    assert default_quant(Target.X_ELITE, tmp_path) is quant
