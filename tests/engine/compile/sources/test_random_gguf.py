"""GGUF files of random blocks: what is compiled of them has the shape that was asked for."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from tests.random_gguf import write_gguf
from tools.random_checkpoint import SHAPES

TINY = SHAPES["tiny"]


@pytest.mark.parametrize("experts", [0, 8])
def test_its_blocks_are_kept(experts: int, tmp_path: Path) -> None:
    file = tmp_path / "random.gguf"
    write_gguf(file, replace(TINY, experts=experts, chosen=2, tied=False, vocab=512))
    arguments = CompileArguments(file, tmp_path / "bundle", quant=Quant.KEEP)
    manifest = compile_bundle(arguments, SilentProgress())
    assert (manifest.model.layers, manifest.model.hidden, manifest.model.vocab) == (TINY.layers, TINY.hidden, 512)
    assert manifest.model.experts is None if not experts else manifest.model.experts.count == experts
