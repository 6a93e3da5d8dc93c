"""What an export is made from and in, what it writes, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.compile.arguments import QUANTS, Backend, ExportArguments, Quant
from engine.compile.graphs.block_export import export_blocks
from engine.compile.progress import SilentProgress
from engine.errors import CompileError, UnsupportedModel
from tests.engine.compile.graphs.block_export.eager import EagerModel, write_block_checkpoint
from tests.engine.compile.sources.gguf.gguf_files import write_gguf
from tests.engine.models.test_recurrent_families import TEXT_ONLY
from tools.block_loop import BlockLoop, ExportedGraph, StepKind, load_export


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_block_checkpoint(tmp_path_factory.mktemp("export") / "source")


def test_a_folder_has_the_graph_its_weights_and_a_description(checkpoint: Path, tmp_path: Path) -> None:
    made = export_blocks(ExportArguments(checkpoint, tmp_path / "out", 24, batch=2), SilentProgress())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.onnx", "model.data", "export.json"}
    assert load_export(tmp_path / "out") == made
    assert (made.block, made.context, made.batch, made.mask_token, made.stop_ids) == (4, 24, 2, 95, (0,))
    assert (made.backend, made.quant, made.dtype, made.mask_layers) == ("cpu", "fp32", "float32", 2)


def test_the_block_is_the_checkpoint_s_unless_said(checkpoint: Path, tmp_path: Path) -> None:
    wide = write_block_checkpoint(tmp_path / "wide", block_size=8)
    plain = write_block_checkpoint(tmp_path / "plain", block_size=None, mask_token_id=None)
    made = [
        export_blocks(ExportArguments(source, tmp_path / f"out-{index}", 24, block), SilentProgress())
        for index, (source, block) in enumerate([(wide, 0), (wide, 2), (plain, 0)])
    ]
    assert [export.block for export in made] == [8, 2, 4]
    assert made[2].mask_token is None


def test_a_gguf_file_says_what_ends_an_answer(tiny_checkpoint: Path, tmp_path: Path) -> None:
    file = write_gguf(tiny_checkpoint, tmp_path / "model.gguf")
    made = [
        export_blocks(ExportArguments(source, tmp_path / source.stem, 24), SilentProgress())
        for source in (tiny_checkpoint, file)
    ]
    assert made[0].stop_ids
    assert sorted(made[1].stop_ids) == sorted(made[0].stop_ids)


@pytest.mark.parametrize(
    ("backend", "quant", "limit"),
    [(Backend.CPU, Quant.INT8, 0.1), (Backend.CPU, Quant.INT4, 0.5), (Backend.NPU, Quant.FP16, 0.02)],
)
def test_rounded_weights_stay_near_the_definition(
    checkpoint: Path, tmp_path: Path, backend: Backend, quant: Quant, limit: float
) -> None:
    arguments = ExportArguments(checkpoint, tmp_path / "out", 24, backend=backend, quant=quant)
    export_blocks(arguments, SilentProgress())
    graph = ExportedGraph(tmp_path / "out", threads=1)
    loop, eager = BlockLoop(graph.export, graph.run), EagerModel(checkpoint)
    for block in ([5, 17, 40, 41], [8, 9, 77, 3]):
        logits, expected = loop.run(block, StepKind.COMMIT), eager.forward(block, commit=True)
        error = np.abs(logits - expected).max() / np.abs(expected).max()
        assert 0 < error < limit


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"backend": Backend.PORTABLE, "quant": Quant.INT4}, "--backend portable takes --quant fp32, not int4"),
        ({"backend": Backend.NPU, "quant": Quant.FP32}, "--backend npu takes --quant fp16, w4, not fp32"),
        ({"block": 2000}, "--block must be from 1 to 1024"),
        ({"batch": 0}, "--batch must be from 1 to 256"),
        ({"context": 3}, "--context must be from 4, one block, to 128"),
        ({"context": 129}, "--context must be from 4, one block, to 128"),
    ],
)
def test_options_out_of_range(checkpoint: Path, tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(CompileError, match=reason):
        export_blocks(ExportArguments(checkpoint, tmp_path / "out", **{"context": 24} | options), SilentProgress())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mask_token_id": 96}, "mask_token_id 96 is outside vocab_size 96"),
        ({"mask_token_id": "[MASK]"}, "mask_token_id must be a whole number"),
        ({"block_size": True}, "block_size must be a whole number"),
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
    ],
)
def test_checkpoints_that_cannot_be(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    source = write_block_checkpoint(tmp_path / "source", **change)
    with pytest.raises(CompileError, match=reason):
        export_blocks(ExportArguments(source, tmp_path / "out", 24), SilentProgress())
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_hybrids_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text(json.dumps(TEXT_ONLY))
    with pytest.raises(UnsupportedModel, match="has layers that an exported graph cannot have"):
        export_blocks(ExportArguments(tmp_path / "source", tmp_path / "out", 24), SilentProgress())


def test_nothing_that_is_there_is_replaced(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(CompileError, match="exists already; name another folder"):
        export_blocks(ExportArguments(checkpoint, tmp_path, 24), SilentProgress())
    assert (tmp_path / "mine").read_text() == "mine"


def test_every_backend_has_a_default() -> None:
    assert {backend: quants[0].value for backend, quants in QUANTS.items()} == {
        "cpu": "fp32",
        "portable": "fp32",
        "npu": "fp16",
    }
