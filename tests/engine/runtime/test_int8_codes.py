"""Codes of fresh rows against those that the attention operator writes."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from engine.runtime.masked_attention import FreshCodes
from tests.bundles import Bundles
from tests.engine.runtime.test_onnx_segments import INT8_CACHES


def by_operator(folder: Path, fresh: np.ndarray, scales: np.ndarray) -> list[np.ndarray]:
    """int8 [N, K, D] of fresh keys and values [2, N, K, D], by scales [2, K, D]."""
    rows, heads, size = fresh.shape[1:]
    session = onnxruntime.InferenceSession(str(folder / "attention.onnx"), providers=["CPUExecutionProvider"])
    width = session.get_inputs()[0].shape[2]
    feeds: dict[str, np.ndarray] = {"query": np.zeros((1, rows, width), np.float32)}
    for index, side in enumerate(("key", "value")):
        feeds[side] = fresh[index].reshape(1, rows, heads * size)
        feeds[f"past_{side}"] = np.zeros((1, heads, rows, size), np.int8)
        feeds[f"{side}_scale"] = scales[index][None, :, None]
    feeds["seqlens_k"], feeds["total_sequence_length"] = np.array([rows - 1], np.int32), np.array(rows, np.int32)
    return [present[0].swapaxes(0, 1) for present in session.run(None, feeds)[1:]]


@pytest.mark.parametrize("seed", range(4))
def test_every_code_is_the_one_that_the_operator_writes(bundles: Bundles, seed: int) -> None:
    """Also of ties, of what the scale does not reach and of values next to a step; rows are taken in any order."""
    random = np.random.default_rng(seed)
    rows, heads, size = 64, 2, 16
    scales = random.uniform(0.01, 0.05, (3, 2, heads, size)).astype(np.float32)
    steps = random.integers(-140, 140, (2, rows, heads, size)) + random.choice(
        [0, 0.5, 0.25, 0.4999], (2, rows, heads, size)
    )
    fresh = (steps * scales[1][:, None]).astype(np.float32)
    codes, indices = FreshCodes(scales, rows), random.permutation(rows)
    for side, expected in enumerate(by_operator(bundles(INT8_CACHES), fresh, scales[1])):
        assert {-128, 127} <= set(expected.flatten().tolist())
        assert (codes.of(1, side, fresh[side], indices) == expected[indices]).all()
