"""Whispers of given sizes with random weights."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import WhisperForConditionalGeneration

from tools.speech import sizes
from tools.speech.sizes import Size, peak_of, write_random


def test_a_line_of_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Written, compiled and run in processes of their own: a number above 0 in every cell."""
    monkeypatch.setattr("sys.argv", ["sizes", "--sizes", "tiny", "--threads", "1"])
    assert sizes.main() == 0
    head, _, line = capsys.readouterr().out.splitlines()
    name, *cells = line.strip("| ").split(" | ")
    assert (name, cells[0]) == ("tiny", "38") and len(cells) + 1 == len(head.strip("| ").split(" | "))
    assert min(map(float, cells)) > 0


def test_the_peak_of_a_command() -> None:
    printed, seconds, peak = peak_of([sys.executable, "-c", "a = b'1' * (1 << 28); print(7)"])
    assert printed == "7\n" and seconds > 0 and peak > 1 << 28
    with pytest.raises(subprocess.CalledProcessError):
        peak_of([sys.executable, "-c", "exit(3)"])


@pytest.mark.parametrize("is_v3", [False, True])
def test_sizes_are_the_published_ones(is_v3: bool, tmp_path: Path) -> None:
    count = write_random(tmp_path, Size(64, (2, 1), is_v3))
    model = WhisperForConditionalGeneration.from_pretrained(tmp_path)
    assert sum(value.numel() for value in model.model.parameters()) == count
    config = model.config
    assert (config.vocab_size, config.num_mel_bins) == ((51_866, 128) if is_v3 else (51_865, 80))
    assert (config.encoder_layers, config.decoder_layers, config.max_target_positions) == (2, 1, 448)


def test_a_size_that_is_not_known(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["sizes", "--sizes", "gigantic"])
    with pytest.raises(SystemExit, match="2"):
        sizes.main()
    assert "gigantic: it is one of tiny, base" in capsys.readouterr().err
