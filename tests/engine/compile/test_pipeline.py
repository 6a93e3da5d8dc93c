"""Which graphs a model that reads images may have, and which source gives it its encoder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.compile.arguments import CompileArguments, Quant, Split, Target
from engine.compile.pipeline import open_for, plan_parts_for, resolve
from engine.compile.progress import SilentProgress
from engine.errors import CompileError
from tests.engine.compile.sources.gguf.projector_files import write_pair
from tests.vision_models import write_qwen_vl


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> CompileArguments:
    """Qwen3-VL for X Elite."""
    folder = tmp_path_factory.mktemp("seeing")
    write_qwen_vl(folder / "source", "Qwen3VL")
    return CompileArguments(
        folder / "source", folder / "bundle", target=Target.X_ELITE, quant=Quant.FP16, rows=(1, 32), context=(512,)
    )


def test_the_host_looks_tokens_up(seeing: CompileArguments) -> None:
    arguments, _, network = resolve(seeing, SilentProgress())
    assert arguments.split is Split.HOST_LMHEAD and network.reads_images
    assert plan_parts_for(arguments, network)[0].source == "inputs_embeds"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant": Quant.W8A16}, r"\(qwen3_vl\) takes --quant w4 or fp16 on an NPU"),
        ({"split": Split.LMHEAD}, r"takes --split host\+lmhead on an NPU"),
        ({"rows": (512,), "context": (1024,)}, "takes at most 256 --rows, not 512"),
        ({"target": Target.CPU, "quant": Quant.FP32}, "needs --target cpu with --layout segments"),
    ],
)
def test_what_is_refused(seeing: CompileArguments, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        resolve(replace(seeing, **changes), SilentProgress())


@pytest.mark.parametrize("kind", ["idefics3", "gemma3"])
def test_gguf_files_with_an_encoder_beside_them(seeing: CompileArguments, tmp_path: Path, kind: str) -> None:
    (tmp_path / "files").mkdir()
    _, file = write_pair(tmp_path / "folder", tmp_path / "files", kind)
    assert "vision_config" in open_for(replace(seeing, source=file)).config
    assert "vision_config" not in open_for(replace(seeing, source=file, target=Target.CPU, quant=Quant.FP32)).config
