"""Bundles for tests, compiled once per session from a tiny random checkpoint."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.bundle.manifest import Manifest
from engine.compile.arguments import CompileArguments, KvType, KvUpdate, Layout, Quant, Split
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from tools.random_checkpoint import SHAPES, write_checkpoint

LAYOUTS: dict[str, dict[str, object]] = {
    "free": {"layout": Layout.POOL},
    "free int8": {"quant": Quant.INT8, "layout": Layout.POOL},
    "free int4": {"quant": Quant.INT4, "layout": Layout.POOL},
    "none": {"split": Split.NONE},
    "lut": {"split": Split.LUT_LMHEAD},
    "fixed": {"rows": (1, 8, 32), "context": (64, 128)},
    "same past": {"rows": (1, 8, 32), "same_past": (96,)},
}
SEGMENTS: dict[str, dict[str, object]] = {
    "segments": {"layout": Layout.SEGMENTS},
    "segments int8": {"quant": Quant.INT8, "layout": Layout.SEGMENTS, "kv": KvType.FLOAT32},
    "segments int4": {"quant": Quant.INT4, "layout": Layout.SEGMENTS},
    "segments int4 float caches": {"quant": Quant.INT4, "layout": Layout.SEGMENTS, "kv": KvType.FLOAT32},
    "segments lora": {"layout": Layout.SEGMENTS, "lora": True},
    "segments lora int4": {"quant": Quant.INT4, "layout": Layout.SEGMENTS, "lora": True},
    "segments int8 caches": {"layout": Layout.SEGMENTS, "kv": KvType.INT8},
    "segments float16 caches": {"layout": Layout.SEGMENTS, "kv": KvType.FLOAT16},
}

FUSED: dict[str, dict[str, object]] = {
    "fused": {"layout": Layout.FUSED, "rows": (8, 16), "same_past": (65,)},
    "fused host": {"layout": Layout.FUSED, "rows": (8,), "same_past": (65,), "kv_update": KvUpdate.HOST},
    "fused 3": {"layout": Layout.FUSED, "rows": (8, 16), "same_past": (65,), "decode_slots": 3},
}


class Bundles:
    """Compiles layouts of the same weights on demand: pool graphs but for those of segments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.source = folder / "checkpoint"
        write_checkpoint(self.source, SHAPES["tiny"])

    def __call__(self, layout: str) -> Path:
        """Folder of a layout of `LAYOUTS`, `SEGMENTS` or `FUSED`."""
        output = self._folder / layout.replace(" ", "-")
        if not output.exists():
            base = CompileArguments(self.source, output, quant=Quant.FP32, parity_tokens=8, layout=Layout.POOL)
            made: Manifest = compile_bundle(replace(base, **(LAYOUTS | SEGMENTS | FUSED)[layout]), SilentProgress())  # type: ignore[arg-type]
            assert made.graphs
        return output


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """Bundles of tiny random weights: `bundles("free")` is a folder."""
    return Bundles(tmp_path_factory.mktemp("bundles"))
