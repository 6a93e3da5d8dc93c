"""Encoders beside transformers, at sizes that take no time."""

import argparse
from pathlib import Path

import pytest

from tools.images import __main__ as images

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "depth": 2}
HEADS = {"num_attention_heads": 4, "num_heads": 4}


def tiny(family: str) -> dict[str, object]:
    """The published one with a small encoder; deep layers and windows as they are, where there are enough layers."""
    said = images.ENCODERS[family]
    deep = {"deepstack_visual_indexes": [0, 1]} if family == "Qwen3VL" else {"fullatt_block_indexes": [1]}
    vision = said["config"]["vision_config"] | TINY | HEADS | (deep if family.startswith("Qwen") else {})
    return {**said, "config": {**said["config"], "vision_config": vision}}


LARGE = ("Qwen2_5_VL", "Qwen3VL")  # the long tier's; nobody's are Gemma 3's 4,096 patches


@pytest.mark.parametrize("family", sorted(images.ENCODERS.keys() - {"Gemma3", *LARGE}))
def test_rows_are_those_of_transformers(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check(family, tmp_path, monkeypatch, capsys)


def check(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(images.ENCODERS, family, tiny(family))
    options = argparse.Namespace(folder=tmp_path, threads=1, rounds=1)
    assert images.measured(family, options) < images.MOST
    name, rows = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")[:2]
    assert (name, int(rows)) == (images.ENCODERS[family]["name"], {"SmolVLM": 64, "Qwen3VL": 196}.get(family, 256))
