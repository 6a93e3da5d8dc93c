"""Whether this processor sums products of 8-bit integers exactly. x86 without VNNI adds two at a time in 16 bits."""

from functools import cache

import numpy as np

from engine.runtime.onnx_library import ort

# One MatMulInteger of a uint8 [1, 2] and weights of 127, int8 [2, 1]: a server has no onnx to make it with.
PRODUCT = bytes.fromhex(
    "080712003a560a180a01610a0162120179220d4d61744d756c496e74656765721201702a0d0802080110034201624a027f7f"
    "5a130a0161120e0a0c080212080a0208010a02080262130a0179120e0a0c080612080a0208010a02080142040a00100a"
)
LARGEST, WANTED = 255, 2 * 255 * 127


@cache
def cuts_sums(has_shared_pool: bool) -> bool:
    """Whether the largest products give less than their sum. has_shared_pool: sessions of this process must use it."""
    options = ort.SessionOptions()
    options.use_per_session_threads = not has_shared_pool
    session = ort.InferenceSession(PRODUCT, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"a": np.full((1, 2), LARGEST, np.uint8)})
    return bool(np.asarray(found).item() != WANTED)
