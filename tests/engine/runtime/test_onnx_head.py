"""Which of the head graphs runs: the smallest fixed one that takes all rows, a free one where none does."""

from collections.abc import Sequence

import msgspec
import numpy as np
import onnxruntime as ort
import pytest

from engine.bundle.manifest import GraphKind, load_manifest
from engine.runtime.buffers import Arena
from engine.runtime.head import LmHead
from tests.bundles import Bundles


@pytest.mark.parametrize(("rows", "width"), [(1, 2), (2, 2), (3, 4), (4, 4), (5, 5)])
@pytest.mark.parametrize("heads", [(None, 2, 4), (4, 2, None), (2, None, 4)], ids=str)
def test_fixed_heads_come_before_a_free_one(
    bundles: Bundles, heads: Sequence[int | None], rows: int, width: int
) -> None:
    folder = bundles("free")
    manifest = load_manifest(folder)
    (free,) = (graph for graph in manifest.graphs if graph.kind is GraphKind.LMHEAD)
    session = ort.InferenceSession(str(folder / free.file), providers=["CPUExecutionProvider"])
    graphs = [msgspec.structs.replace(free, name=f"head {each}", rows=each) for each in heads]
    head = LmHead(
        msgspec.structs.replace(manifest, graphs=tuple(graphs)), {graph.name: session for graph in graphs}, Arena()
    )
    hidden = np.ones((rows, int(free.inputs[0].shape[-1])), np.float32)
    assert head.logits(hidden, 1).codes.shape == (rows, manifest.model.vocab)
    assert list(head._bound) == [width]
