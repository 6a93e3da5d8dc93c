"""Half-precision weight files."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.compile.quantisation.weight_file import WeightFile
from engine.errors import CompileError


def test_floats_become_halves_and_codes_stay(tmp_path: Path) -> None:
    values = np.array([[1.0, 1 / 3], [-65504.0, 6e-8]], np.float32)
    codes = np.arange(4, dtype=np.uint8)
    with WeightFile(tmp_path, "w.data", "float16") as file:
        stored, kept = file.add("values", values), file.add("codes", codes)
    content = (tmp_path / "w.data").read_bytes()
    assert (stored.onnx_type, stored.length, kept.onnx_type) == (onnx.TensorProto.FLOAT16, 8, onnx.TensorProto.UINT8)
    read = np.frombuffer(content[stored.offset : stored.offset + 8], np.float16).reshape(2, 2)
    np.testing.assert_array_equal(read, values.astype(np.float16))
    assert content[kept.offset : kept.offset + 4] == codes.tobytes()


def test_what_half_precision_cannot_hold_is_named(tmp_path: Path) -> None:
    with WeightFile(tmp_path, "w.data", "float16") as file, pytest.raises(CompileError, match=r"layer_3_down.*65504"):
        file.add("layer_3_down", np.array([0.0, -7e4], np.float32))
