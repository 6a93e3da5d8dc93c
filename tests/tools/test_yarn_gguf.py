"""YaRN in a GGUF file: as config.json would say it, with the tensors of the file."""

from pathlib import Path

import gguf
import numpy as np

from engine.compile.sources.source import open_source
from engine.models.family import read_network
from tests.random_gguf import write_gguf
from tools.random_checkpoint import SHAPES
from tools.yarn_gguf import write_yarn


def test_a_file_with_a_longer_context(tmp_path: Path) -> None:
    plain, longer = tmp_path / "plain.gguf", tmp_path / "longer.gguf"
    write_gguf(plain, SHAPES["tiny"])
    write_yarn(plain, longer, 4.0, original=64)
    network = read_network(open_source(longer).config)
    assert (network.spec.rope.kind, network.max_position) == ("yarn", 256)
    first, second = gguf.GGUFReader(plain), gguf.GGUFReader(longer)
    assert set(first.fields) < set(second.fields)
    for before, after in zip(first.tensors, second.tensors, strict=True):
        assert (before.name, before.tensor_type) == (after.name, after.tensor_type)
        assert np.array_equal(before.data, after.data)
