"""What a checkpoint takes in float, by its files."""

import json
from pathlib import Path

import pytest

from engine.models.float_size import LARGEST_IN_FLOAT, float_bytes, quant_by_size


@pytest.mark.parametrize(
    ("config", "times"),
    [({}, 1), ({"torch_dtype": "float32"}, 1), ({"torch_dtype": "float16"}, 2), ({"dtype": "bfloat16"}, 2)],
)
def test_weights_of_half_precision_count_twice(config: dict[str, str], times: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_bytes(bytes(50))
    for part in (1, 2):
        (tmp_path / f"model-{part}.safetensors").write_bytes(bytes(100))
    assert float_bytes(tmp_path) == 200 * times


def test_what_cannot_be_read_counts_nothing(tmp_path: Path) -> None:
    assert float_bytes(tmp_path / "none") == 0
    (tmp_path / "config.json").write_text("{")
    assert float_bytes(tmp_path) == 0


def test_small_models_stay_float() -> None:
    assert quant_by_size(LARGEST_IN_FLOAT, "int8") == "fp32"
    assert quant_by_size(LARGEST_IN_FLOAT + 1, "int8") == "int8"
