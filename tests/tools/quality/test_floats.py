"""The floats that codes stand for: of four bits, or of eight where a matrix gets these."""

from pathlib import Path

import numpy as np

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.compilation import Compilation
from engine.compile.pipeline import CPU_FLOAT
from engine.compile.progress import SilentProgress
from engine.compile.sources.source import FolderSource, open_source
from engine.compile.sources.task import names_in
from engine.models.family import read_network
from tests.engine.compile.sources.gguf.gguf_files import write_gguf
from tools.quality.floats import coded, tensor_names

NAME = "model.layers.0.mlp.down_proj.weight"


def test_a_matrix_that_gets_8_bits_is_nearer(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source, arguments = FolderSource(tiny_checkpoint), CompileArguments(tiny_checkpoint, tmp_path, quant=Quant.W4)
    with source.tensors() as checkpoint:
        network = names_in(checkpoint, read_network(source.config))
        work = Compilation(arguments, SilentProgress(), CPU_FLOAT, source, checkpoint, network, (), (), tmp_path)
        weight = checkpoint.tensor(NAME, checkpoint.shape(NAME))
        errors = []
        for wide in (frozenset[str](), frozenset({NAME})):
            work.wide = wide
            errors.append(np.abs(coded(work, NAME) - weight).max())
    assert 0 < 10 * errors[1] < errors[0]


def test_a_gguf_file_has_the_names_of_its_checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> None:
    file = write_gguf(tiny_checkpoint, tmp_path / "m.gguf")
    found = []
    for source in (FolderSource(tiny_checkpoint), open_source(file)):
        with source.tensors() as checkpoint:
            found.append(tensor_names(checkpoint, names_in(checkpoint, read_network(source.config))))
            listed = len(checkpoint.unused())
    assert found[0] == found[1]
    assert len(found[0]) == listed
