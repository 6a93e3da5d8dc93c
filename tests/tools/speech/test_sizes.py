"""Whispers of given sizes with random weights."""

from pathlib import Path

import pytest
from transformers import WhisperForConditionalGeneration

from tools.speech.sizes import Size, alone, write_random


def test_the_peak_of_a_process() -> None:
    found, peak = alone(len, b"1" * (1 << 28))
    assert found == 1 << 28 and peak > 1 << 28
    with pytest.raises(ValueError, match="invalid literal"):
        alone(int, "x")


@pytest.mark.parametrize("is_v3", [False, True])
def test_sizes_are_the_published_ones(is_v3: bool, tmp_path: Path) -> None:
    count = write_random(tmp_path, Size(64, (2, 1), is_v3))
    model = WhisperForConditionalGeneration.from_pretrained(tmp_path)
    assert sum(value.numel() for value in model.model.parameters()) == count
    config = model.config
    assert (config.vocab_size, config.num_mel_bins) == ((51_866, 128) if is_v3 else (51_865, 80))
    assert (config.encoder_layers, config.decoder_layers, config.max_target_positions) == (2, 1, 448)
