"""Rotated weights in four bits as X Elite binaries: the HTP emulator computes what the checkpoint does."""

from pathlib import Path

import pytest

from engine.compile import pipeline
from engine.compile.arguments import CompileArguments, Quant, Target
from engine.compile.progress import SilentProgress
from engine.compile.sources.source import FolderSource
from engine.models.family import read_network
from tests.engine.compile.quantisation.transforms.rotated_source import rotated


def test_binaries_are_near_the_checkpoint(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    source = FolderSource(tiny_checkpoint)
    turned = rotated(source, read_network(source.config), 5)
    monkeypatch.setattr(pipeline, "open_source", lambda _, with_images=True: turned)
    arguments = CompileArguments(
        tiny_checkpoint, tmp_path / "npu", Target.X_ELITE, Quant.W4, rows=(8,), context=(64,), parity_tokens=16
    )
    assert pipeline.compile_bundle(arguments, SilentProgress()).parity["kl"] < 0.1
