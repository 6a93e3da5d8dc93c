"""A tiny checkpoint, made once."""

from pathlib import Path

import pytest

from tools.random_checkpoint import Qwen3Shape, write_checkpoint

TINY = Qwen3Shape(layers=3, hidden=64, heads=4, kv_heads=2, head_dim=32, ffn=96, vocab=384, max_position=512)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    write_checkpoint(folder, TINY)
    return folder
