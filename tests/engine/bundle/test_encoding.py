"""Codes by hand, and against the contract's measured encodings."""

import numpy as np
import pytest

from engine.bundle.manifest import TensorSpec
from engine.bundle.model_spec import RopeSpec
from engine.bundle.tensors import Encoding, encoding_of
from engine.errors import BundleError
from engine.runtime.buffers import RotaryTable


def test_mask_codes_of_every_convention() -> None:
    assert Encoding("uint16", 100 / 65535, 65535).mask_codes().tolist() == [0, 65535]
    assert Encoding("uint16", 50 / 65535, 65535).mask_codes().tolist() == [0, 65535]
    assert Encoding("float16").mask_codes().tolist() == [-30000, 0]
    assert Encoding("float32").mask_codes()[1] == 0.0


def test_a_mask_that_cannot_say_zero_is_refused() -> None:
    with pytest.raises(BundleError, match="cannot say 0"):
        Encoding("uint16", 0.5, 70000).mask_codes()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float16", "float32"])
def test_round_trip_is_within_half_a_step(dtype: str) -> None:
    scale = {"uint8": 0.02, "uint16": 0.0001}.get(dtype, 1e-3)
    encoding = Encoding(dtype, scale, {"uint8": 128, "uint16": 32768}.get(dtype, 0))
    values = np.linspace(-2, 2, 101)
    assert np.abs(encoding.decode(encoding.encode(values)) - values).max() <= scale / 2 + 1e-6
    assert encoding.decode(encoding.encode(np.zeros(1)))[0] == 0.0


def test_out_of_range_is_clamped_not_wrapped() -> None:
    assert Encoding("uint8", 1.0, 128).encode(np.array([-1e9, 1e9])).tolist() == [0, 255]


def test_quantised_tensors_need_their_scale() -> None:
    with pytest.raises(BundleError, match="past_key_0_in"):
        encoding_of(TensorSpec("past_key_0_in", "uint8", (1,)))
    with pytest.raises(BundleError, match="int64"):
        encoding_of(TensorSpec("x", "int64", (1,)))
    assert encoding_of(TensorSpec("x", "uint8", (1,), 0.1, 128)) == Encoding("uint8", 0.1, 128)


def test_rotary_rows_at_any_position() -> None:
    rope = RopeSpec("default", 10000.0, 4, (1.0, 0.01), 1.5)
    positions = np.array([7, 0, 3000], np.int32)
    out = np.empty((3, 2), np.float32)
    RotaryTable(rope, True, Encoding("float32")).fill(positions, out)
    angles = positions[:, None] * np.array([1.0, 0.01])
    np.testing.assert_allclose(out, 1.5 * np.cos(angles), atol=1e-5)
    codes = np.empty((3, 2), np.uint16)
    encoding = Encoding("uint16", 2 / 65535, 32768)
    RotaryTable(RopeSpec("default", 10000.0, 4, (1.0, 0.01)), False, encoding).fill(positions, codes)
    np.testing.assert_allclose(encoding.decode(codes), np.sin(angles), atol=4e-5)


def test_half_an_encoding_is_none() -> None:
    for scale, zero_point in ((0.1, None), (None, 128)):
        with pytest.raises(BundleError, match="no scale or zero point"):
            encoding_of(TensorSpec("x", "uint8", (1,), scale, zero_point))


def test_codes_without_an_encoding_are_the_numbers() -> None:
    assert Encoding("uint8").decode(np.array([0, 3, 255], np.uint8)).tolist() == [0.0, 3.0, 255.0]
