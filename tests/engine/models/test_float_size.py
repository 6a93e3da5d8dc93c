"""What a checkpoint takes in float, by its files."""

import json
from pathlib import Path

import pytest

from engine.models.config_fields import LARGEST_IN_FLOAT, four_bits_because, keeps_floats, quant_by_size
from engine.models.stored_codes import float_bytes


@pytest.mark.parametrize(
    ("config", "times"),
    [({}, 1), ({"torch_dtype": "float32"}, 1), ({"torch_dtype": "float16"}, 2), ({"dtype": "bfloat16"}, 2)],
)
def test_weights_of_half_precision_count_twice(config: dict[str, str], times: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_bytes(bytes(50))
    for part in (1, 2):
        (tmp_path / f"model-{part}.safetensors").write_bytes(bytes(100))
    (tmp_path / "model.safetensors.index.json").write_bytes(bytes(50))
    (tmp_path / "consolidated.safetensors").write_bytes(bytes(200))  # the same once more, as Mistral publishes
    assert float_bytes(tmp_path) == 200 * times


def test_what_cannot_be_read_counts_nothing(tmp_path: Path) -> None:
    assert float_bytes(tmp_path / "none") == 0
    (tmp_path / "config.json").write_text("{")
    assert float_bytes(tmp_path) == 0


def test_small_models_stay_float() -> None:
    assert quant_by_size(LARGEST_IN_FLOAT, "int8") == "fp32"
    assert quant_by_size(LARGEST_IN_FLOAT + 1, "int8") == "int8"


@pytest.mark.parametrize(
    ("floats", "machine", "rate", "because"),
    [
        (8e9, 16e9, 0.0, ""),
        (32e9, 16e9, 0.0, "8 bits a weight would take more than half of the memory, 16.0 GB"),
        (32e9, 0, 0.0, ""),
        (0, 1, 1.0, ""),
        (32e9, 64e9, 90e9, ""),
        (32e9, 64e9, 45e9, "8 bits a weight would give 5.0 tokens a second of memory that reads 45 GB"),
    ],
)
def test_eight_bits_are_the_default_where_memory_is_large_and_fast(
    floats: float, machine: float, rate: float, because: str
) -> None:
    assert four_bits_because(int(floats), int(machine), rate) == because


@pytest.mark.parametrize(
    ("floats", "machine", "expected"),
    [(4 << 30, 16 << 30, True), (5 << 30, 16 << 30, False), (5 << 30, 0, True), (0, 16 << 30, False)],
)
def test_a_file_of_floats_stays_one_where_memory_is_plenty(floats: int, machine: int, expected: bool) -> None:
    assert keeps_floats(floats, machine) is expected
