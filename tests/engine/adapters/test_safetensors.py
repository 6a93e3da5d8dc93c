"""Tensors as the library writes them, and files that lie about what is in them."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.adapters.adapter import TensorFile
from engine.errors import BundleError


@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16])
def test_what_the_library_writes(tmp_path: Path, dtype: object) -> None:
    tensors = {name: np.random.default_rng(3).normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}
    save_file(tensors, tmp_path / "file", {"format": "pt"})
    with TensorFile.open(tmp_path / "file") as file:
        assert set(file.entries) == set(tensors)
        for name, tensor in tensors.items():
            found = file.read(name, SHAPES[name])
            assert found.dtype == np.float32 and (found == tensor.astype(np.float32)).all()


SHAPES = {"a": (3, 5), "b": (7, 2)}
ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def write(folder: Path, header: object, data: bytes = bytes(16), length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "file").write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return folder / "file"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"shape": [2, 3]}, r"tensor 'x' has shape \[2, 3\], not \[2, 2\]"),
        ({"shape": [1] * 99}, r"has shape \[1, 1, 1, 1, 1, 1, 1, 1\], not"),
        ({"dtype": "I64"}, "tensor 'x' has type 'I64'; supported are F32, F16, BF16"),
        ({"data_offsets": [0, 12]}, "tensor 'x' of 16 bytes lies at 0 to 12 of 16 bytes"),
        ({"data_offsets": [4, 20]}, "lies at 4 to 20 of 16 bytes"),
        ({"data_offsets": [-16, 0]}, "lies at -16 to 0 of 16 bytes"),
    ],
)
def test_tensors_that_are_not_what_they_must_be(tmp_path: Path, changed: dict[str, object], told: str) -> None:
    with TensorFile.open(write(tmp_path, {"x": ENTRY | changed})) as file, pytest.raises(BundleError, match=told):
        file.read("x", (2, 2))


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    data = np.array([1, 2, np.inf, 3], "<f4").tobytes()
    with TensorFile.open(write(tmp_path, {"x": ENTRY}, data)) as file, pytest.raises(BundleError, match="not finite"):
        file.read("x", (2, 2))


@pytest.mark.parametrize(
    ("header", "length"),
    [
        ({"x": ENTRY}, 1 << 60),
        ({"x": ENTRY}, 0),
        (b"not JSON", None),
        (b"\xff\xfe{}", None),
        ({"x": {"dtype": "F32"}}, None),
        ({"x": ENTRY | {"data_offsets": [0]}}, None),
        ({"x": ENTRY | {"shape": ["a"]}}, None),
        ([1], None),
        (b"[" * 100_000, None),
    ],
)
def test_headers_that_are_none(tmp_path: Path, header: object, length: int | None) -> None:
    with pytest.raises(BundleError, match="is no safetensors file"):
        TensorFile.open(write(tmp_path, header, length=length))


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"123")
    with pytest.raises(BundleError, match="is no safetensors file"):
        TensorFile.open(tmp_path / "short")
    with pytest.raises(BundleError, match="cannot be read: it is a folder"):
        TensorFile.open(tmp_path)
