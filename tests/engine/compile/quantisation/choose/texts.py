"""Texts of random tokens, and a run of the chooser over a source."""

from pathlib import Path

import numpy as np

from engine.compile.quantisation.choose.choose import Chooser, CodesFolder, Forms
from engine.compile.quantisation.choose.form import CodeForm, Streams
from engine.compile.quantisation.rounding.codes import Coding
from engine.compile.sources.checkpoint import Checkpoint, RoundedCheckpoint
from engine.models.network import Network

SYMMETRIC = CodeForm(32, Coding.SYMMETRIC)
ROWS = CodeForm(32, Coding.SYMMETRIC, has_rows=True)


def random_texts(count: int, length: int, vocab: int = 256) -> list[list[int]]:
    """Texts of different lengths, `length` the longest."""
    random = np.random.default_rng(5)
    return [[int(token) for token in random.integers(0, vocab, length - index)] for index in range(count)]


def coded(checkpoint: Checkpoint, codes: CodesFolder) -> Checkpoint:
    """The checkpoint with the floats that the codes stand for."""
    return RoundedCheckpoint(
        checkpoint, {name: lambda _, name=name: codes.read(name).floats() for name in codes.layouts}
    )


def choose(
    checkpoint: Checkpoint,
    network: Network,
    folder: Path,
    texts: list[list[int]],
    form: CodeForm = SYMMETRIC,
    head: CodeForm | None = SYMMETRIC,
    kept: frozenset[str] = frozenset(),
    wide: frozenset[str] = frozenset(),
) -> tuple[CodesFolder, Streams, Chooser]:
    """The codes of all matrices, the streams behind the last layer, and who made them."""
    folder.mkdir()
    codes = CodesFolder(folder)
    chooser = Chooser(checkpoint, network, Forms(form, head, ROWS), codes, lambda _: None, kept, wide)
    return codes, chooser.run(texts), chooser
