"""A bundle tells in which basis it has keys and values: another one of the model can go on with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bundle.manifest import load_manifest
from engine.compile import pipeline
from engine.compile.arguments import CompileArguments, Layout, QualityLevel, Quant
from engine.compile.progress import SilentProgress
from engine.compile.sources.source import FolderSource, Source
from engine.models.family import read_network
from tests.engine.compile.quantisation.transforms.rotated_source import rotated
from tests.engine.worker.movers import ASKED, alone, moved, opened, tokens

MakeOracle = Callable[..., tuple[Any, Path]]


def open_plain(path: Path, with_images: bool = True) -> Source:
    return FolderSource(path)


def open_rotated(path: Path, with_images: bool = True) -> Source:
    source = FolderSource(path)
    return rotated(source, read_network(source.config), 5)


@pytest.mark.parametrize("family", ["Qwen3", "Phi3"])
def test_another_basis_of_values_is_told_of(
    family: str, make_oracle: MakeOracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = make_oracle(family)
    made = []
    for opener, layout in ((open_rotated, Layout.POOL), (open_plain, Layout.SEGMENTS)):
        monkeypatch.setattr(pipeline, "open_source", opener)
        made.append(tmp_path / layout.value)
        arguments = CompileArguments(folder, made[-1], quant=Quant.FP32, layout=layout, parity_tokens=8)
        pipeline.compile_bundle(arguments, SilentProgress())
    manifests = [load_manifest(bundle) for bundle in made]
    assert [bool(manifest.head_basis) for manifest in manifests] == [True, False]
    for first, second in (made, reversed(made)):
        found, taken_over = moved(first, second, 5, tmp_path)
        assert found == alone(made[1]) and taken_over == 64


def test_integer_caches_of_evened_heads_hold_the_checkpoint_s_keys_and_values(
    make_oracle: MakeOracle, short_text: Path, tmp_path: Path
) -> None:
    """As far as 8 bits, and activations of 16, can: scales folded into keys and values are undone."""
    _, folder = make_oracle("Qwen3")
    shapes: dict[str, Any] = {"rows": (8,), "context": (128,), "calibration": short_text, "parity_tokens": 8}
    floats = CompileArguments(folder, tmp_path / "floats", quant=Quant.FP32, layout=Layout.SEGMENTS, parity_tokens=8)
    codes = CompileArguments(folder, tmp_path / "codes", quant=Quant.W8A16, quality=QualityLevel.GOOD, **shapes)
    told = []
    for arguments in (floats, codes):
        pipeline.compile_bundle(arguments, SilentProgress())
        worker = opened(arguments.output)
        worker.loop.add(ASKED, (), 0, 0.0)
        tokens(worker, 1)
        assert worker.mover
        worker.mover.give("a", tmp_path / "caches")
        with (tmp_path / "caches").open("rb") as stream:
            told.append([np.load(stream), np.load(stream)])
        worker.loop.close()
        worker.runtime.close()
    assert load_manifest(codes.output).head_basis
    assert np.array_equal(told[0][0], told[1][0])
    exact, rounded = (values.astype(np.float64).swapaxes(0, 3) for _, values in told)
    for side in (0, 1):
        error = np.linalg.norm(exact[:, side] - rounded[:, side]) / np.linalg.norm(exact[:, side])
        assert error < 0.05
