"""What `quantization_config` says, and what of it is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CompileError, UnsupportedModel
from engine.models.stored_codes import CodeFormat, StoredCodes, checkpoint_quant, read_stored_codes, stored_codes_of

BLOCKS = {"quant_method": "compressed-tensors", "format": "float-quantized"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "gptq", "bits": 4}, StoredCodes(CodeFormat.GPTQ, 4, True)),
        (
            {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"},
            StoredCodes(CodeFormat.GPTQ, 8, has_zeros_less_one=False),
        ),
        (
            {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"},
            StoredCodes(CodeFormat.GPTQ, 4, True),
        ),
        ({"quant_method": "awq", "bits": 4, "version": "GEMM"}, StoredCodes(CodeFormat.AWQ, 4)),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 64]},
            StoredCodes(CodeFormat.FP8, tile=(128, 64), is_carried=False),
        ),
        (
            BLOCKS
            | {"config_groups": {"a": {"weights": {"strategy": "block", "block_structure": [128, 128]}}, "b": {}}},
            StoredCodes(CodeFormat.COMPRESSED, tile=(128, 128), is_carried=False),
        ),
        ({"load_in_4bit": True}, StoredCodes(CodeFormat.BITSANDBYTES, 4, is_carried=False)),
    ],
)
def test_what_is_read(config: dict[str, Any], expected: StoredCodes) -> None:
    """Also from where a model for more than text keeps it."""
    assert read_stored_codes({"quantization_config": config}) == expected
    assert read_stored_codes({"text_config": {"quantization_config": config}}) == expected
    assert read_stored_codes({}) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "quanto"}, "quant_method 'quanto' is not supported .gptq, awq"),
        ({"quant_method": "gptq", "bits": 3}, "codes of 3 bits"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "'marlin'"),
        ({"quant_method": "awq", "version": "gemv"}, "'gemv'"),
        ({"quant_method": "awq", "bits": 8}, "AWQ with 8 bits"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "'marlin-24'"),
        (
            {"quant_method": "compressed-tensors", "format": "dense", "transform_config": {"config_groups": {"a": {}}}},
            "transform_config",
        ),
        (BLOCKS | {"config_groups": {str(n): {"weights": {"block_structure": [n, n]}} for n in (64, 128)}}, "sizes"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "'W4A8'"),
        ("gptq", "quantization_config must be an object"),
    ],
)
def test_what_is_refused(config: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((UnsupportedModel, CompileError), match=message):
        read_stored_codes({"quantization_config": config})
    assert stored_codes_of(tmp_path) is None


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
    assert checkpoint_quant(tmp_path, 1000, rate=1.0) == in_little


@pytest.mark.parametrize("config", [{"num_experts": 64}, {"text_config": {"n_routed_experts": 8}}])
def test_slow_memory_asks_for_no_four_bits_of_experts_that_few_rows_read(
    config: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3MoeForCausalLM"]} | config))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert checkpoint_quant(tmp_path, 1000, rate=1.0) == "int8"
