"""Exported block-diffusion graphs for an NPU, wholly on QNN in the HTP emulator."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.compile.arguments import Backend, ExportArguments, Quant
from engine.compile.graphs.block_export import GRAPH_FILE, OUTPUTS, export_blocks
from engine.compile.progress import SilentProgress
from engine.runtime.qnn.provider import HtpTarget, compile_options, open_session
from tests.engine.compile.graphs.block_export.eager import EagerModel, write_block_checkpoint
from tools.block_loop import BlockLoop, StepKind, Tensor

X_ELITE = HtpTarget(60, 73)


@pytest.mark.parametrize(("quant", "limit"), [(Quant.FP16, 0.02), (Quant.W4, 0.5)])
def test_the_emulator_denoises_and_commits(tmp_path: Path, quant: Quant, limit: float) -> None:
    pytest.importorskip("onnxruntime_qnn")
    source = write_block_checkpoint(tmp_path / "source", hidden_size=64, intermediate_size=64)
    made = export_blocks(
        ExportArguments(source, tmp_path / "out", 32, backend=Backend.NPU, quant=quant), SilentProgress()
    )
    session = open_session(tmp_path / "out" / GRAPH_FILE, compile_options(X_ELITE), {})

    def forward(inputs: dict[str, Tensor]) -> tuple[NDArray[np.float32], Tensor]:
        logits, cache = session.run(list(OUTPUTS), inputs)
        return logits, cache

    loop, eager = BlockLoop(made, forward), EagerModel(source)
    for block in ([5, 17, 40, 41], [8, 9, 77, 3], [1, 2, 3, 95]):
        before = loop.cache.tobytes()
        loop.run(block, StepKind.ITERATION)
        assert loop.cache.tobytes() == before
        logits, expected = loop.run(block, StepKind.COMMIT), eager.forward(block, commit=True)
        assert np.abs(logits - expected).max() < limit * np.abs(expected).max()
        assert loop.cache[..., loop.committed :, :].tobytes() == before_columns(before, loop)


def before_columns(before: bytes, loop: BlockLoop) -> bytes:
    """The columns behind the committed ones, as they were."""
    old = np.frombuffer(before, loop.cache.dtype).reshape(loop.cache.shape)
    return old[..., loop.committed :, :].tobytes()
